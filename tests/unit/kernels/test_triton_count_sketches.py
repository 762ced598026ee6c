"""Triton's count sketches in Triton's interpreter, for the tensors of a bucket, against the specification, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from grace.compute.launching import launch
from grace.kernels import PRIME, TensorList, count_sketches_many, read_sketches_many
from grace.kernels.count_sketches.triton import is_minus, modulo
from grace.random import Stream
from tests.unit.kernels.test_triton_lookup_table import views
from tests.unit.kernels.triton_checks import CAUGHT, agree, interpreter, night

__all__ = ["interpreter"]


def sketched(
    sizes: tuple[int, ...], rows: int, cols: tuple[int, ...], held: bool, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Sketches of several tensors, between which there is room; and what these say, of which one is not finite."""
    places, at = [], 1
    for c in cols:
        places.append(4 * at)
        at += rows * c + 2
    streams = [Stream(5, "CountSketch", str(n), None, 0) for n in sizes]
    many, rooms = (TensorList(sizes, places, streams, torch.device("cpu")) for _ in range(2))
    many.point(views(sizes, 0, dtype), views(sizes, 1) if held else None, views(sizes, 2) if held else None)
    message, out = torch.zeros(at), views(sizes, 3)
    count_sketches_many(message, many, rows, cols, 2**31 + 9)
    rooms.point(out)
    finite = read_sketches_many(message, rooms, rows, cols, 2**31 + 9)
    before = [x.clone() for x in out]
    last = message.clone()
    last[places[-1] // 4 : places[-1] // 4 + rows * cols[-1]] = torch.nan
    spoiled = read_sketches_many(last, rooms, rows, cols, 2**31 + 9)
    return [message, finite, spoiled, *before, *out[:-1], out[-1].isnan()]


CASES = [
    ((70, 1, 301), 3, (5, 1, 7), True, torch.bfloat16),
    ((40, 9), 1, (3, 140), False, torch.float16),
    ((33,), 5, (2,), False, torch.float32),
]


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_sketches_of_a_bucket(case: tuple[Any, ...]) -> None:
    agree(lambda: sketched(*case), case)


def test_estimates_are_finite() -> None:
    """Estimates are finite, though of numbers near the largest the median of the sums may be larger."""
    many = TensorList((64,), (0,), [Stream(1, "CountSketch", "a", None, 0)], torch.device("cpu"))

    def draw() -> list[Tensor]:
        message, x = torch.zeros(2), torch.full((1, 64), 3e38)
        many.point([x])
        count_sketches_many(message, many, 1, (2,), 0)
        read_sketches_many(message, many, 1, (2,), 0)
        assert x.abs().max() == torch.finfo(torch.float32).max
        return [message, x]

    agree(draw, "large")


def test_numbers_are_added_in_order() -> None:
    """The order of addition shows: of two large ones, which come first, one cancels the other, and the third is left; else it
    would be lost.
    """
    streams = [Stream(1, "CountSketch", "a", None, 0)] * 2
    many = TensorList((3, 3), (0, 4), streams, torch.device("cpu"))

    def draw() -> list[Tensor]:
        message = torch.zeros(2)
        many.point([torch.tensor([[2.0**60, large, 1.0]]) for large in (2.0**60, -(2.0**60))])
        count_sketches_many(message, many, 1, (1, 1), 0)
        assert 0.25 in message.abs()
        return [message]

    agree(draw, "order")


@triton.jit
def _remainders(out, values):  # type: ignore[no-untyped-def]
    i = tl.arange(0, 8)
    tl.store(out + i, modulo(tl.load(values + i)))


def test_remainders() -> None:
    values = [0, PRIME - 1, PRIME, PRIME + 1, 2 * PRIME - 1, 2**32 - 1, 123_456_789_012_345, PRIME * (PRIME - 1) - 1]
    out = torch.zeros(8, dtype=torch.int64)
    launch(_remainders, (1,), out, torch.tensor(values))
    assert out.tolist() == [value % PRIME for value in values]


@night
@pytest.mark.parametrize("rows", [1, 9])
def test_sketches_of_many_sizes(rows: int) -> None:
    for sizes, cols in (((1025, 5), (129, 1)), ((1, 2, 3), (1, 2, 3))):
        for held, dtype in ((True, torch.float16), (False, torch.float32)):
            agree(lambda s=sizes, c=cols, h=held, d=dtype: sketched(s, rows, c, h, d), (sizes, rows))  # type: ignore[misc]


# ---- mutants --------------------------------------------------------------------------------------------------------
@triton.jit
def _not_reduced(v):  # type: ignore[no-untyped-def]
    return (v & 0x7FFFFFFF) + (v >> 31)


@triton.jit
def _minus_of_the_next(a, b, c, d, i):  # type: ignore[no-untyped-def]
    return is_minus(a, b, c, d, i + 1)


@triton.jit
def _as_it_is(x):  # type: ignore[no-untyped-def]
    return x


def _backwards(cells: Tensor, *, stable: bool) -> tuple[Tensor, Tensor]:
    """The numbers of a cell in the other order."""
    ascending, order = cells.flip(0).sort(stable=stable)
    return ascending, len(cells) - 1 - order


@pytest.mark.parametrize(
    ("where", "mutant", "test"),
    [
        (f"{__name__}.modulo", _not_reduced, test_remainders),
        (
            "grace.kernels.count_sketches.triton.is_minus",
            _minus_of_the_next,
            lambda: test_sketches_of_a_bucket(CASES[1]),
        ),
        ("grace.kernels.count_sketches.triton.negated", _as_it_is, lambda: test_sketches_of_a_bucket(CASES[1])),
        ("torch.sort", _backwards, test_numbers_are_added_in_order),
    ],
)
def test_mutants_are_caught(where: str, mutant: Any, test: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, mutant)
    with pytest.raises(CAUGHT):
        test()
