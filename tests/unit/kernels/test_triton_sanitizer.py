"""The sanitizer of Triton kernels finds each defect that it is for, and none where there is none."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from triton.runtime.errors import InterpreterError

from grace.compute.launching import launch
from tests.unit.kernels.triton_checks import interpreter
from tests.unit.kernels.triton_sanitizer import sanitize

__all__ = ["interpreter"]
N = 256


@triton.jit
def _clean(x, y, total, T: tl.constexpr):  # type: ignore[no-untyped-def]
    """Each program its own tile, twice, and all of them a sum and a mark."""
    i = tl.program_id(0) * T + tl.arange(0, T)
    tl.store(y + i, tl.load(x + i) + 1)
    tl.store(y + i, tl.load(y + i) + 1)
    tl.debug_barrier()
    j = tl.program_id(0) * T + T - 1 - tl.arange(0, T)
    turned = tl.load(y + j)
    tl.debug_barrier()
    tl.store(y + i, turned)
    turned = tl.load(x + j)
    if tl.max(turned, 0) > -1:  # which all threads wait for
        tl.store(x + i, turned)
    tl.atomic_add(total, 1.0)
    tl.store(total + 1, 1.0)


@triton.jit
def _beyond(x, y, total, T: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * T + tl.arange(0, T)
    tl.store(y + i, tl.load(x + i + 1))


@triton.jit
def _before(x, y, total, T: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * T + tl.arange(0, T)
    tl.store(y + i - 1, tl.load(x + i), i > -1)


@triton.jit
def _odd(x, y, total, T: tl.constexpr):  # type: ignore[no-untyped-def]
    word = (x.to(tl.pointer_type(tl.uint8)) + 2).to(tl.pointer_type(tl.float32))
    tl.store(total, tl.load(word))


@triton.jit
def _after_another_program(x, y, total, T: tl.constexpr):  # type: ignore[no-untyped-def]
    before = tl.load(total)
    tl.store(total, before)


@triton.jit
def _different_marks(x, y, total, T: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(total, tl.program_id(0).to(tl.float32))


@triton.jit
def _sum_that_is_read(x, y, total, T: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.atomic_add(total, 1.0)
    tl.store(y + tl.program_id(0), tl.load(total))


@triton.jit
def _turned_at_once(x, y, total, T: tl.constexpr):  # type: ignore[no-untyped-def]
    """A place reads what another one writes, and no barrier is between them."""
    start = tl.program_id(0) * T
    turned = tl.load(y + start + T - 1 - tl.arange(0, T))
    tl.store(y + start + tl.arange(0, T), turned)


@triton.jit
def _read_by_all(x, y, total, T: tl.constexpr):  # type: ignore[no-untyped-def]
    """A thread writes, and all of them read."""
    at = y + tl.program_id(0)
    tl.store(at, 1.0)
    tl.store(at, tl.load(at) + 1)


def faults_of(kernel: Any) -> list[str]:
    with sanitize() as faults, suppress(InterpreterError):
        launch(kernel, (2,), torch.rand(N), torch.zeros(N), torch.zeros(2), T=N // 2)
    return faults


def test_what_is_in_order_is_no_fault() -> None:
    assert faults_of(_clean) == []


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (_beyond, "1 of 128 addresses outside of all tensors"),
        (_before, "1 of 128 addresses outside of all tensors"),
        (_odd, "not aligned to 4 bytes"),
        (_after_another_program, "programs in no order"),
        (_different_marks, "programs in no order"),
        (_sum_that_is_read, "programs in no order"),
        (_turned_at_once, "threads in no order"),
        (_read_by_all, "threads in no order"),
    ],
)
def test_a_defect_is_named(kernel: Any, words: str) -> None:
    fault = faults_of(kernel)[0]
    assert fault.startswith(f"{kernel.fn.__name__}: {words}: ")
    assert fault.count("kernels/test_triton_sanitizer.py:") >= 1


def test_memory_that_was_given_back_is_outside() -> None:
    with sanitize() as faults:
        x, y = torch.rand(N), torch.zeros(N)
        table = torch.tensor([x.data_ptr()])
        launch(_through, (1,), table, y, T=N)
        assert torch.equal(x, y)
        del x
        with pytest.raises(InterpreterError):
            launch(_through, (1,), table, y, T=N)
    (fault,) = faults
    assert f"_through: {N} of {N} addresses outside of all tensors" in fault


@triton.jit
def _through(table, y, T: tl.constexpr):  # type: ignore[no-untyped-def]
    x = tl.load(table).to(y.dtype)
    tl.store(y + tl.arange(0, T), tl.load(x + tl.arange(0, T)))
