"""Triton kernels for tails, in Triton's interpreter, against the specification."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from grace.kernels import tail_sums_many, tops_many
from grace.kernels.tensor_list import TensorList
from tests.unit.kernels.native_checks import offset
from tests.unit.kernels.triton_checks import CAUGHT, agree, interpreter, night
from tests.unit.kernels.triton_mutants import memory_left_out

__all__ = ["interpreter"]

SIZES = (70, 1, 300, 33, 41)
BOUNDS = (-1.0, 0.0, 0.7, 1.5, 1e300)


def tails(dtype: torch.dtype, sizes: tuple[int, ...] = SIZES, memories: bool = True, bad: float = 0.0) -> None:
    made = torch.Generator().manual_seed(len(sizes))
    xs = [offset(torch.randn(1, n, generator=made).to(dtype), 1) for n in sizes]
    xs[0][0, 0] = bad
    added = [offset(torch.randn(1, n, generator=made), 1) for n in sizes]
    many = TensorList(sizes, (), (), torch.device("cpu"))
    assert many.point(xs, added if memories else None)

    def draw() -> list[Tensor]:
        bounds = torch.tensor([BOUNDS[t % 5] for t in range(len(sizes))], dtype=torch.float64)
        return [tops_many(many.like, many), *([] if bad else [tail_sums_many(bounds, many)])]

    agree(draw, (dtype, sizes))


@pytest.mark.parametrize(("dtype", "memories"), [(torch.float32, True), (torch.bfloat16, True), (torch.float16, False)])
def test_tails_of_a_bucket(dtype: torch.dtype, memories: bool) -> None:
    tails(dtype, memories=memories)


@pytest.mark.parametrize("bad", [math.inf, -math.inf])
def test_what_is_not_finite_is_largest(bad: float) -> None:
    tails(torch.float32, (5, 3), bad=bad)


@night
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_all_sizes(dtype: torch.dtype) -> None:
    tails(dtype, tuple(range(1, 301)))
    tails(dtype, (4095, 8193, 4096), memories=False)


# ---- mutants --------------------------------------------------------------------------------------------------------
@triton.jit
def _half_of_each(lanes, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.sum(lanes, 1) * 0.5


def _first_piece(sums: Tensor, pieces: int) -> Tensor:
    return sums.view(len(sums), -1, pieces)[..., 0].contiguous()


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("load_sum", memory_left_out),
        ("halves", _half_of_each),
        pytest.param("join_pieces", _first_piece, marks=night),
    ],
)
def test_mutants_are_caught(name: str, mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"grace.kernels.exceedances.triton.{name}", mutant)
    with pytest.raises(CAUGHT):
        tails(torch.float32, (4097,) if name == "join_pieces" else SIZES)
