"""Triton kernels for samples, in Triton's interpreter, against the specification."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from grace.compute import backends
from grace.flags.finite import cpu_as_accelerator
from grace.kernels import choose_drawn_many, sum_drawn_many, write_drawn_many
from grace.kernels.index_codes.codes import most
from grace.kernels.packing import packed_bytes
from grace.kernels.sampling import Budgets, Chances, DrawnCode, DrawnPlaces
from grace.kernels.sampling.triton.search import find_units
from grace.kernels.sampling.units import unit_of_budget
from grace.kernels.tensor_list import TensorList
from grace.random import Stream
from tests.unit.kernels.coded_buckets import compare_damaged
from tests.unit.kernels.native_checks import offset
from tests.unit.kernels.triton_checks import CAUGHT, agree, interpreter, night

__all__ = ["interpreter"]

Sizes = tuple[int, ...]
SIZES = (
    90,
    6,
    20,
    1,
    33,
)  # the second and the fourth go without lists, the third is all zero, the last not finite on rank 1
COUNT = Chances(0.1, None, 4, True)
MOST_OF_THEM = Chances(0.9, None, 4, False)
SPREAD = Chances(0.01, 0.5, 4, False)


def bucket(sizes: Sizes, rank: int, dtype: torch.dtype = torch.float32, memories: bool = True) -> TensorList:
    """Tensors that begin at odd places, few of whose numbers are large."""
    made, streams = torch.Generator().manual_seed(rank), [Stream(0, "m", str(n), rank, 0) for n in sizes]
    many, xs, kept = TensorList(sizes, (), streams, torch.device("cpu")), list[Tensor](), list[Tensor]()
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
    sizes: Sizes, code: DrawnCode, chances: Chances | Budgets, world: int = 2, **how: Any
) -> tuple[list[TensorList], DrawnPlaces, Tensor, list[Tensor]]:
    """The tensors of workers, where their wires lie, these, and whether tensors were finite."""
    buckets = [bucket(sizes, rank, **how) for rank in range(world)]
    chosen = [choose_drawn_many(many.like, many, code, chances, 7) for many in buckets]
    widths = [choice.widths.tolist() for choice in chosen]
    rows = torch.zeros(world, DrawnPlaces(widths, 0, sizes, code).size, dtype=torch.uint8)
    for rank, row in enumerate(rows):
        places = DrawnPlaces(widths, rank, sizes, code)
        write_drawn_many(row, buckets[rank], code, chosen[rank], places)
    return buckets, places, rows, [choice.finite for choice in chosen]


def wires_and_sums(
    index: str, chances: Chances | Budgets = COUNT, sizes: Sizes = SIZES, world: int = 2, **how: Any
) -> None:
    code = DrawnCode(index)

    def draw() -> list[Tensor]:
        with cpu_as_accelerator():
            buckets, places, rows, finite = messages(sizes, code, chances, world, **how)
            legal = sum_drawn_many(rows, out := bucket(sizes, 0), code, places, 0.3)
        flags = [flag for flags in finite for flag in flags]
        rests = [rest for many in buckets for rest in many.rests or ()]
        settled = [rest for flag, rest in zip(flags, rests, strict=bool(rests)) if flag]
        return [rows, *finite, *settled, legal, *out.xs]

    agree(draw, (index, chances, sizes, how))


def test_wires_and_their_sums() -> None:
    wires_and_sums("auto")


@pytest.mark.parametrize("index", ["rice", pytest.param("delta", marks=night)])
def test_wires_whose_places_are_gaps(index: str) -> None:
    wires_and_sums(index, sizes=SIZES[:4])


def test_units_that_spend_a_budget() -> None:
    wires_and_sums("raw", Budgets(None, 0.15, True))


@night
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_units_that_spend_other_budgets(dtype: torch.dtype) -> None:
    wires_and_sums("auto", Budgets(3.5, 0.01, False), dtype=dtype, memories=False)


@night
def test_a_budget_that_is_spent_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grace.kernels.sampling.triton.unit_of_budget", lambda a, budget: unit_of_budget(a, 2 * budget))
    with pytest.raises(CAUGHT):
        wires_and_sums("raw", Budgets(None, 0.15, True))


@night
def test_wires_of_a_given_variance() -> None:
    wires_and_sums("raw", SPREAD)
    wires_and_sums("raw", MOST_OF_THEM, tuple(range(2, 15)))  # some of which go without lists


@night
@pytest.mark.parametrize("index", ["raw", "bitmap", "elias-fano", "rice", "delta"])
def test_wires_of_several_tiles(index: str) -> None:
    wires_and_sums(index, sizes=(4097, 300))
    wires_and_sums(index, SPREAD, (300, 64, 20), 3)


@night
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("memories", [False, True])
def test_gradients_of_all_types(dtype: torch.dtype, memories: bool) -> None:
    wires_and_sums("auto", dtype=dtype, memories=memories)
    wires_and_sums("elias-fano", Chances(0.01, 2.0, 0, True), dtype=dtype, memories=memories)


def units(chances: Chances, sizes: Sizes = (5, 4097, 64, 8191, 1), scale: float = 1.0) -> None:
    """Units are those of the specification, of all sizes."""
    many = bucket(sizes, 0, memories=False)
    for x in many.xs:
        x.mul_(scale)
    units_found = find_units(many, chances)
    for x, unit in zip(many.xs, units_found.tolist(), strict=True):
        want = chances.unit(x[0].abs()) if bool(x.any()) else math.inf
        want = min(max(want, torch.finfo(torch.float32).tiny), torch.finfo(torch.float32).max)
        assert unit == float(torch.tensor(want)), (chances, x.shape)


@pytest.mark.parametrize("chances", [Chances(0.3, None, 1, False), SPREAD])
def test_units(chances: Chances) -> None:
    units(chances, (5, 64, 33, 1))


@night
@pytest.mark.parametrize("epsilon", [1e-12, 1e-3, 3.0, 1e300])
@pytest.mark.parametrize("rounds", [0, 4])
def test_units_of_several_pieces(epsilon: float, rounds: int) -> None:
    """In rounds of which there are enough, or too few, and beyond what is launched; of numbers that have no normal unit."""
    units(Chances(0.01, epsilon, 0, False))
    units(Chances(0.9, None, rounds, False), scale=1e-42)


@pytest.mark.parametrize("index", ["raw", "bitmap", "elias-fano", "auto"])
def test_there_is_room_for_what_is_sent(index: str) -> None:
    for n in (1, 2, 7, 64, 301, 70_000):
        for share in (0, 1, n // 100, n // 9, n // 2, n):
            for k1 in {0, 1, share // 2, share}:
                k2 = max(0, share - k1)
                size = 8 + 4 * k1 + most(n, k1, index) + (4 + packed_bytes(k2, 1) + most(n, k2, index)) * (k2 > 0)
                assert share <= DrawnPlaces([[size]], 0, [n], DrawnCode(index)).rooms[0, 0] <= n, (index, n, k1, k2)


@night
def test_more_wires_than_are_added_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grace.kernels.sampling.triton.AT_ONCE", 2)
    wires_and_sums("auto", sizes=SIZES[:2])
    monkeypatch.setattr("grace.kernels.sampling.triton.gapped.AT_ONCE", 2)
    wires_and_sums("delta", sizes=SIZES[:2])


def damaged(index: str, steps: range) -> set[bool]:
    code = DrawnCode(index)
    with cpu_as_accelerator(), backends.using("reference"):
        _, places, rows, _ = messages(SIZES[:2], code, COUNT)
    add_up = functools.partial(sum_drawn_many, code=code, places=places, weight=1.0)
    return compare_damaged(rows, places.begins[0] + 4, steps, lambda: bucket(SIZES[:2], 0), add_up)


def test_damaged_wires_are_told() -> None:
    assert damaged("auto", range(30, 32)) == {False}  # the signs of both counts and of a value come later


@night
@pytest.mark.parametrize("index", ["raw", "bitmap", "elias-fano", "rice", "delta"])
def test_damaged_wires_of_all_kinds(index: str) -> None:
    assert damaged(index, range(2, 170, 7)) == {True, False}


# ---- mutants --------------------------------------------------------------------------------------------------------
@triton.jit
def _all_alike(key0, key1, step, i):  # type: ignore[no-untyped-def]
    return (i * 0).to(tl.float32) + 0.5


@triton.jit
def _one_round(total, second, old, goal, spread, n, FIRST: tl.constexpr, SQUARES: tl.constexpr):  # type: ignore[no-untyped-def]
    better = total / goal
    if SQUARES:
        better = (spread + second) / total
    return tl.where(FIRST & (total > 0), better, old)


@triton.jit
def _none_expected(sums, pieces, n, k1):  # type: ignore[no-untyped-def]
    return n - n


def _at_once(ends: Tensor, *_: Any) -> None:
    """Each second list is said to begin where the first does."""


MUTANTS: list[tuple[str, Any, Any]] = [
    ("sampling.triton._uniform_at", _all_alike, lambda: wires_and_sums("auto", sizes=SIZES[:2])),
    ("sampling.triton.search._unit_of", _one_round, lambda: units(Chances(0.3, None, 2, False), (64,))),
    ("sampling.triton.gapped.note_ends", _at_once, lambda: wires_and_sums("delta", sizes=SIZES[:1])),
    ("sampling.triton.expected_of", _none_expected, lambda: wires_and_sums("raw", MOST_OF_THEM, tuple(range(2, 15)))),
]


@pytest.mark.parametrize(
    ("place", "mutant", "test"),
    [case if case[1] is _one_round else pytest.param(*case, marks=night) for case in MUTANTS],
)
def test_mutants_are_caught(place: str, mutant: Any, test: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"grace.kernels.{place}", mutant)
    with pytest.raises(CAUGHT):
        test()
