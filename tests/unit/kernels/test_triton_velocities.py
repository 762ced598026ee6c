"""Triton kernels for the velocities of a bucket, in Triton's interpreter, against the specification."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from grace.kernels import accelerate_many, forget_many
from grace.kernels.tensor_list import TensorList
from tests.unit.kernels.native_checks import offset
from tests.unit.kernels.triton_checks import CAUGHT, agree, interpreter, night

__all__ = ["interpreter"]

SIZES = (70, 1, 1025)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def velocities(dtype: torch.dtype, nesterov: bool, sizes: tuple[int, ...] = SIZES, by: int = 1) -> None:
    """Tensors that begin at odd addresses, whose every third number is sent; all of the last one's, which is not masked."""
    made = torch.Generator().manual_seed(len(sizes))
    xs = [offset(torch.randn(1, n, generator=made), by).to(dtype) for n in sizes]
    memories = [offset(torch.randn(2, n, generator=made), by) for n in sizes]
    masked = torch.tensor([1] * (len(sizes) - 1) + [0], dtype=torch.int32)

    def draw() -> list[Tensor]:
        own = [offset(x, by) for x in xs]
        beside = nesterov or dtype is not torch.float32
        given = [torch.empty(1, n) for n in sizes] if beside else own
        added, after = [torch.empty(1, n) for n in sizes], [offset(torch.zeros(2, n), by) for n in sizes]
        many, rooms = (TensorList(sizes, (), (), torch.device("cpu")) for _ in range(2))
        assert many.point(own, memories, after)
        assert rooms.point(given, added if nesterov else None)
        accelerate_many(many.like, many, rooms, 0.9, nesterov=nesterov)
        parts = zip(given, added if nesterov else [memory[1:] for memory in memories], strict=True)
        sums = [room + other for room, other in parts]
        moved = [u.clone() for u, _ in after]
        for (_, rest), p in zip(after, sums, strict=True):
            rest.copy_(p[0])
            rest[::3] = 0
        forget_many(masked, many, nesterov=nesterov)
        return [*sums, *moved, *after, *(own if beside else [])]

    agree(draw, (dtype, nesterov, sizes))


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_velocities_of_a_bucket(dtype: torch.dtype, nesterov: bool) -> None:
    velocities(dtype, nesterov)


@night
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_sizes(dtype: torch.dtype, nesterov: bool) -> None:
    for by in range(2):
        velocities(dtype, nesterov, (*range(1, 301), 1023, 1024, 4097), by)


# ---- mutants --------------------------------------------------------------------------------------------------------
@triton.jit
def _no_gradient(x, i, inside):  # type: ignore[no-untyped-def]
    return tl.zeros(i.shape, tl.float32)


@triton.jit
def _memory_for_rest(table, task, COLUMN: tl.constexpr, EVEN: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.load(table + task * 8 + (COLUMN + 1) // 2 * 2).to(tl.pointer_type(tl.float32))


MUTANTS = (
    ("load_number", _no_gradient, False), ("load_number", _no_gradient, True), ("tensor_of", _memory_for_rest, False),
)  # fmt: skip


@pytest.mark.parametrize(("name", "mutant", "nesterov"), MUTANTS)
def test_mutants_are_caught(name: str, mutant: Any, nesterov: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"grace.kernels.momentum.triton.{name}", mutant)
    with pytest.raises(CAUGHT):
        velocities(torch.float32, nesterov)
