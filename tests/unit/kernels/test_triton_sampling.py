"""Triton kernels for samples, in Triton's interpreter, against the specification."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from grace.compute import backends
from grace.errors import PayloadError
from grace.flags.finite import cpu_as_accelerator
from grace.kernels import choose_drawn_many, sum_drawn_many, write_drawn_many
from grace.kernels.many import Many
from grace.kernels.sampling import Chances, DrawnCode, DrawnPlaces
from grace.kernels.sampling.search.triton import find_units
from grace.random import Stream
from tests.unit.kernels.native_checks import offset
from tests.unit.kernels.triton_checks import CAUGHT, agree, interpreter, night

__all__ = ["interpreter"]

Sizes = tuple[int, ...]
SIZES = (301, 6, 90, 1, 64)  # the second and the fourth go without lists, the third is all zero, the last not finite on rank 1
COUNT = Chances(0.1, None, 4, True)
SPREAD = Chances(0.01, 0.5, 4, False)


def bucket(sizes: Sizes, rank: int, dtype: torch.dtype = torch.float32, memories: bool = True) -> Many:
    """Tensors that begin at odd places, few of whose numbers are large."""
    made, streams = torch.Generator().manual_seed(rank), [Stream(0, "m", str(n), rank, 0) for n in sizes]
    many, xs, kept = Many(sizes, (), streams, torch.device("cpu")), list[Tensor](), list[Tensor]()
    for t, n in enumerate(sizes):
        x, e = (torch.randn(1, n, generator=made).pow(3) for _ in range(2))
        if t == 2:
            x, e = x * 0, e * 0
        if t == 4 and rank == 1:
            x[0, -1] = math.inf
        xs.append(offset(x.to(dtype), t % 4))
        kept.append(offset(e, t % 4))
    rests = [offset(torch.zeros_like(e), t % 4) for t, e in enumerate(kept)]
    assert many.point(xs, kept, rests) if memories else many.point(xs)
    return many


def messages(
    sizes: Sizes, code: DrawnCode, chances: Chances, world: int = 2, **how: Any
) -> tuple[list[Many], DrawnPlaces, Tensor, list[Tensor]]:
    """The tensors of workers, where their wires lie, these, and whether tensors were finite."""
    buckets = [bucket(sizes, rank, **how) for rank in range(world)]
    chosen = [choose_drawn_many(many.like, many, code, chances, 7) for many in buckets]
    widths = [choice.widths.tolist() for choice in chosen]
    rows = torch.zeros(world, DrawnPlaces(widths, 0, sizes, code).size, dtype=torch.uint8)
    for rank, row in enumerate(rows):
        places = DrawnPlaces(widths, rank, sizes, code)
        write_drawn_many(row, buckets[rank], code, chosen[rank], places)
    return buckets, places, rows, [choice.finite for choice in chosen]


def wires_and_sums(index: str, chances: Chances = COUNT, sizes: Sizes = SIZES, world: int = 2, **how: Any) -> None:
    code = DrawnCode(index)

    def draw() -> list[Tensor]:
        with cpu_as_accelerator():
            buckets, places, rows, finite = messages(sizes, code, chances, world, **how)
            legal = sum_drawn_many(rows, out := bucket(sizes, 0), code, places, 0.3)
        rests = [
            rest for many, fine in zip(buckets, finite, strict=True) for rest, ok in zip(many.rests or (), fine) if ok
        ]
        return [rows, *finite, *rests, legal, *out.xs]

    agree(draw, (index, chances, sizes, how))


@pytest.mark.parametrize(("index", "chances"), [("auto", COUNT), ("raw", SPREAD)])
def test_wires_and_their_sums(index: str, chances: Chances) -> None:
    wires_and_sums(index, chances)


@night
@pytest.mark.parametrize("index", ["raw", "bitmap", "elias-fano", "auto", "rice", "delta"])
@pytest.mark.parametrize("chances", [COUNT, SPREAD, Chances(0.9, None, 0, True)], ids=str)
def test_wires_of_several_tiles(index: str, chances: Chances) -> None:
    wires_and_sums(index, chances, (9001, 4096, 300, 4097), 3)


@night
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("memories", [False, True])
def test_gradients_of_all_types(dtype: torch.dtype, memories: bool) -> None:
    wires_and_sums("auto", dtype=dtype, memories=memories)
    wires_and_sums("elias-fano", Chances(0.01, 2.0, 0, True), dtype=dtype, memories=memories)


def units(chances: Chances, scale: float = 1.0) -> None:
    """Units are those of the specification, of all sizes."""
    many = bucket((5, 4097, 64, 8191, 1), 0, memories=False)
    for x in many.xs:
        x.mul_(scale)
    found = find_units(many, chances)
    for x, unit in zip(many.xs, found.tolist(), strict=True):
        want = chances.unit(x[0].abs()) if bool(x.any()) else math.inf
        want = min(max(want, torch.finfo(torch.float32).tiny), torch.finfo(torch.float32).max)
        assert unit == float(torch.tensor(want)), (chances, x.shape)


def test_units() -> None:
    """In rounds of which there are enough, or too few; of numbers that have no normal unit; and beyond what is launched."""
    for chances in (COUNT, Chances(0.3, None, 0, False), SPREAD, Chances(0.01, 1e-12, 0, False)):
        units(chances)
    units(Chances(0.9, None, 2, False), 1e-42)


def test_more_wires_than_are_added_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grace.kernels.sampling.triton.AT_ONCE", 2)
    wires_and_sums("auto", sizes=SIZES[:2])
