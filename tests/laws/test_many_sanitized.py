"""Buckets of every method under the sanitizer of Triton kernels: no kernel reads or writes outside of tensors, or where it
is not aligned, and nothing depends on which program or thread comes first. Triton's interpreter stands in for a GPU.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from triton.runtime.errors import InterpreterError

from grace.compute import backends
from grace.flags.finite import cpu_as_accelerator
from grace.registry.policy import Policy
from tests.laws.bucket_runs import ALL, Run, Shapes
from tests.laws.cases import CASES
from tests.unit.kernels.triton_checks import interpreter
from tests.unit.kernels.triton_sanitizer import sanitize

__all__ = ["interpreter"]

SPREAD = True  # over the test runner's processes
SHAPES: Shapes = ((1300,), (1, 7), (33, 5), (1,), (8, 16))
# The others follow at night.
HERE = ("efsignsgd", "powersgd")
DTYPES = (torch.float32, torch.bfloat16)


def faults_of(spec: str, dtype: torch.dtype, steps: int = 3) -> list[str]:
    """Faults of three steps of two workers: with ugly numbers in the second and the third, and an inf."""
    method: Any = CASES.get(spec, spec)
    with sanitize() as faults, backends.using("triton"), cpu_as_accelerator(), suppress(InterpreterError):
        run = Run(Policy([("*", method)]), 2, SHAPES, ALL, dtype)
        for _ in range(steps):
            run.step()
    return faults


@pytest.mark.parametrize("spec", HERE)
def test_buckets(spec: str) -> None:
    assert faults_of(spec, torch.float32) == []


@pytest.mark.night("a sum that is written too far")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("spec", CASES)
def test_buckets_of_all_cases(spec: str, dtype: torch.dtype) -> None:
    assert faults_of(spec, dtype) == []


@triton.jit
def _too_far(p, value, inside, full):  # type: ignore[no-untyped-def]
    tl.store(p + 1, value, inside)


@triton.jit
def _one_place(out, i, n, ADD, full):  # type: ignore[no-untyped-def]
    """Keeps in the first place of a tensor what the programs of its tiles have seen."""
    tl.store(out, tl.program_id(0).to(tl.float32))
    return tl.zeros_like(i).to(tl.float32)


@pytest.mark.parametrize(
    ("where", "mutant"),
    [("grace.kernels.signs.triton.store_tile", _too_far), ("grace.kernels.signs.triton.so_far", _one_place)],
    ids=["a sum that is written too far", "a place that several programs write"],
)
def test_mutants_are_caught(where: str, mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, mutant)
    assert faults_of("efsignsgd", torch.float32, 1) != []
