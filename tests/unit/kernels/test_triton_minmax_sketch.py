"""Triton kernels for places of non-zeros and sketches of their buckets, in Triton's interpreter, to the bit."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from grace.compute import backends
from grace.errors import PayloadError
from grace.flags.finite import cpu_as_accelerator
from grace.kernels import MinMaxCode, MinMaxPlaces, TensorList, choose_minmax_many, sum_minmax_many, write_minmax_many
from grace.kernels.minmax_sketch.groups import BucketGroups
from grace.random import Stream
from tests.unit.kernels.coded_buckets import Coded, Sizes
from tests.unit.kernels.native_checks import offset
from tests.unit.kernels.triton_checks import CAUGHT, interpreter, night
from tests.unit.kernels.triton_mutants import never

__all__ = ["interpreter"]

STEP = 2**31 + 5
SMALL = (6, 40, 3, 60)
SIGNS = (None, -1.0, 0.0, 1.0)  # of the numbers of each tensor; None: both


def bucket(sizes: Sizes, rank: int, density: float) -> TensorList:
    """Tensors with zeros, negative or not: of both signs, of one, and of none; the first is not finite on rank 1."""
    made = torch.Generator().manual_seed(rank)
    many = TensorList(
        sizes, (), [Stream(3, "SketchML", str(t), None, 0) for t in range(len(sizes))], torch.device("cpu")
    )
    parts = list[list[Tensor]]()
    for t, n in enumerate(sizes):
        zero, sign = torch.rand(1, n, generator=made) >= density, SIGNS[t % 4]
        pair = [torch.randn(1, n, generator=made).masked_fill_(zero, -0.0) for _ in range(2)]
        if sign is not None:
            pair = [part.abs() * sign for part in pair]
        parts.append([offset(part, t % 4) for part in (*pair, torch.zeros(1, n))])
    if rank == 1:
        parts[0][0][0, -1] = torch.nan
    many.point(*(list(column) for column in zip(*parts, strict=True)))
    return many


def lay(*args: Any) -> MinMaxPlaces:
    places = MinMaxPlaces(*args)
    places.step = STEP
    return places


CODE = MinMaxCode(16, 8, 2, 0.3, 0.01, "auto")
CODED = Coded(CODE, lay, partial(choose_minmax_many, step=STEP), write_minmax_many, sum_minmax_many, bucket)
OTHERS = (
    MinMaxCode(5, 3, 1, 1.0, 1.0, "elias-fano"), MinMaxCode(256, 8, 2, 0.3, 0.01, "raw"),
    MinMaxCode(7, 256, 3, 0.1, 0.01, "bitmap"), MinMaxCode(2, 2, 16, 0.01, 0.01, "auto"),
    MinMaxCode(256, 256, 2, 0.3, 0.01, "auto"), MinMaxCode(255, 2, 5, 0.5, 0.01, "raw"),
)  # fmt: skip
GAPS = MinMaxCode(5, 3, 2, 0.3, 0.01, "rice"), MinMaxCode(16, 16, 1, 0.3, 0.01, "delta")


@pytest.mark.parametrize("code", [CODE, GAPS[0], pytest.param(GAPS[1], marks=night)], ids=repr)
def test_wires_and_their_sums(code: MinMaxCode) -> None:
    replace(CODED, code=code).exchange((6, 25, 3), 0.6, 2)


@night
@pytest.mark.parametrize("code", [CODE, *GAPS], ids=repr)
def test_numbers_of_one_sign(code: MinMaxCode) -> None:
    replace(CODED, code=code).exchange(SMALL, 0.6, 2)
    replace(CODED, code=code).exchange(SMALL, 0.0, 2)


@night
@pytest.mark.parametrize("code", GAPS, ids=repr)
def test_gaps_at_every_small_size(code: MinMaxCode) -> None:
    """And around what a block of gaps and a tile have."""
    coded = replace(CODED, code=code)
    coded.exchange(tuple(range(1, 67)), 0.7, 2)
    coded.exchange((127, 128, 129, 255, 256, 257, 1023, 1024, 1025, 1026), 1.0, 1)
    coded.exchange((127, 128, 129, 1023, 1024, 1025, 2049), 0.1, 2)


@night
@pytest.mark.parametrize("code", [*OTHERS, *GAPS], ids=repr)
@pytest.mark.parametrize("density", [1.0, 0.05])
def test_other_codes(code: MinMaxCode, density: float) -> None:
    replace(CODED, code=code).exchange((1, 41, 2, 300, 7), density, 2)


@night
@pytest.mark.parametrize("code", [CODE, OTHERS[1], OTHERS[5], *GAPS], ids=repr)
def test_several_tiles(code: MinMaxCode) -> None:
    replace(CODED, code=code).exchange((4095, 1025, 30, 1024, 9000), 0.3, 3)


@night
def test_quantiles_of_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quantiles are taken of numbers that are drawn, of more than 4,096 here."""
    monkeypatch.setattr("grace.kernels.quantiles.samples.SMALL", 4096)
    replace(CODED, code=MinMaxCode(6, 4, 2, 0.3, 0.03, "auto")).exchange((9000, 4200, 50, 4097), 0.99, 1)


@night
def test_more_workers_than_a_launch_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grace.kernels.minmax_sketch.triton.read.AT_ONCE", 2)
    CODED.exchange(SMALL, 0.6, 3)
    replace(CODED, code=GAPS[1]).exchange(SMALL, 0.6, 3)


def test_groups_have_a_table_of_their_own() -> None:
    """Every bucket has a place, and back, for each number of negative buckets."""
    for q, groups in ((2, 2), (7, 3), (16, 8), (256, 100)):
        for z in range(q + 1):
            sides, buckets = BucketGroups.of(q, z, groups), torch.arange(q)
            assert torch.equal(sides.code_of(*sides.locate(buckets)), buckets)


# ---- what no sender writes ------------------------------------------------------------------------------------------
# A byte of a wire, and what it becomes: counts that are too large, and negative.
DAMAGE = ((0, 200, False), (3, 0x80, False))
NARROW = MinMaxCode(5, 5, 1, 1.0, 0.01, "raw")  # groups 5 to 7 do not exist


def damaged() -> None:
    CODED.damaged(DAMAGE, (3, 40), 0.5)


def damaged_groups() -> None:
    replace(CODED, code=NARROW).damaged(((NARROW.head, 0xFF, False),), (3, 40), 0.5)


def test_damaged_wires_are_told() -> None:
    damaged()
    damaged_groups()


@night
@pytest.mark.parametrize("code", [CODE, NARROW, OTHERS[0], *GAPS], ids=repr)
def test_whatever_is_damaged(code: MinMaxCode) -> None:
    """Wires are refused where the specification refuses them, whichever bit is another one; and if they are not, they say the
    same.
    """
    coded, sizes, told = replace(CODED, code=code), (3, 14), set[bool]()
    with cpu_as_accelerator(), backends.using("reference"):
        places, rows, _, _ = coded.messages(sizes, 0.9, 1)
    begin, width = places.begins[1] + 4, places.widths[0][1]
    for k in range(36):
        at = k if k < 8 else width - k + 7 if k < 28 else 8 + k * 11 % (width - 8)
        spoiled, results = rows.clone(), list[Any]()
        spoiled[0, begin + at] ^= 1 << k * 5 % 8
        for backend in ("reference", "triton"):
            many = bucket(sizes, 2, 1.0)
            with cpu_as_accelerator(), backends.using(backend):
                try:
                    legal = sum_minmax_many(spoiled, many, code, places, 0.5).tolist()
                except PayloadError:
                    legal = [True, False]
            results.append([legal, *(x.tolist() for x, fine in zip(many.xs, legal, strict=True) if fine)])
        assert results[0] == results[1], (at, k)
        told.add(results[0][0][1])
    assert told == {True, False}


@pytest.mark.parametrize("width", [71, 400])
def test_widths_that_no_sender_writes(width: int) -> None:
    with pytest.raises(PayloadError, match="field 'width' of rank 1 must be in"):
        MinMaxPlaces([[72], [width]], 0, [41], CODE)


def test_there_is_room_for_all_places() -> None:
    """No wire has more numbers than it has room for."""
    for n, k, code in ((1000, 1000, CODE), (1000, 3, CODE), (2**20, 5000, OTHERS[0]), (7, 7, NARROW)):
        size = MinMaxCode.most(code, n) if k == n else code.head + -(-k * code.bits // 8) + -(-k * 8 // 8)
        assert MinMaxPlaces([[size]], 0, [n], code).rooms[0, 0] >= min(k, n)


# ---- mutants --------------------------------------------------------------------------------------------------------
@triton.jit
def _backwards(bucket, z, below, lower, upper):  # type: ignore[no-untyped-def]
    far = tl.where(bucket < z, bucket, bucket - z)
    width = tl.where(bucket < z, lower, upper)
    return far // width + tl.where(bucket < z, 0, below), far % width


@triton.jit
def _always_first(key0, key1, step, row, i, cols):  # type: ignore[no-untyped-def]
    return (i * 0 + row * 0).to(tl.int64)


@triton.jit
def _always(marks, bad):  # type: ignore[no-untyped-def]
    tl.store(marks, 0)


@triton.jit
def _no_count(at):  # type: ignore[no-untyped-def]
    return tl.load(at).to(tl.int32) * 0 + 1


@triton.jit
def _first_bucket(edges, p, q, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.zeros(p.shape, tl.int32)


@triton.jit
def _nothing_before(n, k, coded, CODE: tl.constexpr):  # type: ignore[no-untyped-def]
    return k - k, k - k, k - k, tl.load(coded) * 0


def _at_once(ends: Tensor, *_: Any) -> None:
    """Cells are said to begin where places do."""


def exchange(code: MinMaxCode = CODE) -> None:
    replace(CODED, code=code).exchange((20,), 1.0, 1)


MUTANTS: list[tuple[str, Any, Any]] = [
    ("triton.locate", _backwards, exchange),
    ("triton.cell_at", _always_first, exchange),
    ("triton.bucket_of", _first_bucket, exchange),
    ("triton.mark_if", _always, partial(CODED.exchange, (3, 20), 1.0, 1)),
    ("triton.read.count_at", _no_count, exchange),
    ("triton.read.cell_at", _always_first, exchange),
    ("triton.read.mark_if", _always, exchange),
    ("triton.read.mark_if", never, damaged_groups),
    ("triton.list_of", _nothing_before, partial(exchange, GAPS[1])),
    ("triton.gapped.note_ends", _at_once, partial(exchange, GAPS[0])),
    ("triton.gapped._fits", lambda *_: False, partial(exchange, GAPS[1])),
]


@pytest.mark.parametrize(("place", "mutant", "test"), MUTANTS)
def test_mutants_are_caught(place: str, mutant: Any, test: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"grace.kernels.minmax_sketch.{place}", mutant)
    with pytest.raises(CAUGHT):
        test()
