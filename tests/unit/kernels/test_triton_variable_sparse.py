"""Triton kernels for wires that say how many numbers they hold, in Triton's interpreter, against the specification."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from grace.compute import backends
from grace.compute.launching import launch
from grace.errors import PayloadError
from grace.flags.finite import cpu_as_accelerator
from grace.kernels import choose_reaching_many, choose_sampled_many, sum_counted_many, write_chosen_many
from grace.kernels.index_codes import codes as index_codes
from grace.kernels.index_codes.fixed import FIXED, layout
from grace.kernels.sparse_codes.triton import coding
from grace.kernels.tensor_list import TensorList
from grace.kernels.variable_sparse import Chosen, CountedCode, CountedPlaces, Sampling
from grace.kernels.variable_sparse import triton as counted
from grace.random import Stream
from tests.unit.kernels.coded_buckets import compare_damaged
from tests.unit.kernels.native_checks import offset
from tests.unit.kernels.triton_checks import CAUGHT, agree, interpreter, night

__all__ = ["interpreter"]

SIZES = (41, 6, 1)
BOUNDS = ((1.0, 0.01, 9.0), (1.5, 9.0, 0.0))  # of each worker; all of the second tensor exceeds the first one's


def bucket(sizes: tuple[int, ...], rank: int) -> TensorList:
    """Tensors with memories, which begin at odd places."""
    made, streams = torch.Generator().manual_seed(rank), [Stream(0, "m", str(n), rank, 0) for n in sizes]
    many = TensorList(sizes, (), streams, torch.device("cpu"))
    xs, memories, rests = (
        [offset(torch.randn(1, n, generator=made), (t + k) % 4) for t, n in enumerate(sizes)] for k in range(3)
    )
    assert many.point(xs, memories, rests)
    return many


def reaching(rank: int, many: TensorList, code: CountedCode) -> Chosen:
    bounds = torch.tensor(BOUNDS[rank][: len(many)], dtype=torch.float64)
    return choose_reaching_many(bounds, many, code, strict=code.narrow)


def sampled(rank: int, many: TensorList, code: CountedCode) -> Chosen:
    """The threshold of one worker is lowered, and more reach the other's than are sent; and an inf."""
    many.xs[1].view(-1)[0] = (1.0, math.inf)[rank]
    share = (1, 2)[rank]
    seen = tuple(min(n, 10) for n in many.sizes)
    sought = tuple(max(1, k // 3 * (share - 1)) for k in seen)
    sampling = Sampling(seen, sought, tuple(-(-n // (4 * share)) for n in many.sizes), 0.8, 10)
    return choose_sampled_many(many.like, many, code, sampling, 3)


def messages(
    sizes: tuple[int, ...], code: CountedCode, choose: Callable[[int, TensorList, CountedCode], Chosen] = reaching
) -> tuple[list[TensorList], CountedPlaces, Tensor, list[Tensor]]:
    """Two workers' tensors, where their wires lie, these, and whether tensors were finite."""
    buckets = [bucket(sizes, rank) for rank in range(2)]
    chosen = [choose(rank, many, code) for rank, many in enumerate(buckets)]
    widths = [choice.widths.tolist() for choice in chosen]
    rows = torch.zeros(2, CountedPlaces(widths, 0, sizes, code).size, dtype=torch.uint8)
    for rank, row in enumerate(rows):
        places = CountedPlaces(widths, rank, sizes, code)
        write_chosen_many(row, buckets[rank], code, chosen[rank], places)
    return buckets, places, rows, [choice.finite for choice in chosen]


def wires_and_sums(code: CountedCode, sizes: tuple[int, ...] = SIZES, choose: Any = reaching) -> None:
    def draw() -> list[Tensor]:
        with cpu_as_accelerator():
            buckets, places, rows, finite = messages(sizes, code, choose)
            rests = [rest for many in buckets for rest in many.rests or ()]
            legal = sum_counted_many(rows, buckets[0], code, places, 0.3)
        return [rows, *finite, *rests, legal, *buckets[0].xs]

    agree(draw, (code, sizes))


@pytest.mark.parametrize(
    ("index", "narrow"), [("auto", False), ("elias-fano", True), ("rice", True), ("delta", False), ("delta", True)]
)
def test_wires_and_their_sums(index: str, narrow: bool) -> None:
    wires_and_sums(CountedCode(index, narrow))


@pytest.mark.parametrize("narrow", [False, pytest.param(True, marks=night)])
def test_what_a_sample_gives(narrow: bool) -> None:
    wires_and_sums(CountedCode("auto", narrow), choose=sampled)


@night
def test_samples_of_several_tiles() -> None:
    wires_and_sums(CountedCode("auto", True), (4097, 300, 9001), choose=sampled)


def test_more_wires_than_are_added_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted, "AT_ONCE", 1)
    wires_and_sums(CountedCode("raw", False))
    monkeypatch.setattr("grace.kernels.variable_sparse.triton.gapped.AT_ONCE", 1)
    wires_and_sums(CountedCode("delta", True))


@night
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("index", [*FIXED, "auto", "rice", "delta"])
def test_wires_of_several_tiles(index: str, narrow: bool) -> None:
    wires_and_sums(CountedCode(index, narrow), (4097, 300, 9001))


def widths_of(index: str) -> None:
    """Widths that the device computes of codes are those that the host knows."""
    pairs = [
        (n, k) for n in (1, 2, 3, 63, 300, 70_000, (1 << 31) - 1) for k in {0, 1, 2, n // 100, n // 9, n} if k <= n
    ]
    table = torch.zeros(len(pairs), 8, dtype=torch.int64)  # of a TensorList without tensors: nobody has so many numbers
    table[:, 4] = torch.tensor([n for n, _ in pairs])
    total, lists = torch.tensor([k for _, k in pairs], dtype=torch.int32), torch.zeros(len(pairs), 8, dtype=torch.int64)
    widths, code = torch.zeros(len(pairs), dtype=torch.int64), CountedCode(index, False)
    constants = {"VALUE": code.value, "CODE": code.number, **coding(None)}
    launch(counted._plan, (len(pairs),), table, total, lists, widths, **constants)
    for (n, k), width, line in zip(pairs, widths.tolist(), lists.tolist(), strict=True):
        size = index_codes.most(n, k, index)
        if 4 * k + size >= 4 * n:
            assert (width, line[0], line[2]) == (4 + 4 * n, n, 3)
            continue
        assert width == 4 + 4 * k + size, (n, k)
        number, low, _ = layout(n, k, index_codes.fixed_code(n, k, index))
        assert k == 0 or (line[2], line[3]) == (number, low), (n, k)


@pytest.mark.parametrize("index", ["auto", pytest.param("elias-fano", marks=night), pytest.param("raw", marks=night)])
def test_widths_are_found_out_on_the_device(index: str) -> None:
    widths_of(index)


def test_wires_that_no_sender_writes_spoil_their_own_tensor() -> None:
    code = CountedCode("raw", False)
    with backends.using("triton"), cpu_as_accelerator():
        buckets, places, rows, _ = messages(SIZES[:2], code)
        at = places.begins[0] + 4
        for where, value in ((at, 200), (at + 3, 0x80), (at, rows[1, at] - 1), (at + 7, 0x7F)):
            spoiled = rows.clone()
            spoiled[1, where] = value
            if where == at + 7:
                spoiled[1, at + 6] = 0x80  # an inf
            legal = sum_counted_many(spoiled, buckets[0], code, places, 1.0)
            assert legal.tolist() == [False, True], (where, value)


def damaged(index: str, steps: range) -> set[bool]:
    code = CountedCode(index, True)
    with cpu_as_accelerator(), backends.using("reference"):
        _, places, rows, _ = messages(SIZES[:2], code)
    add_up = functools.partial(sum_counted_many, code=code, places=places, weight=1.0)
    return compare_damaged(rows, places.begins[0] + 4, steps, lambda: bucket(SIZES[:2], 0), add_up, rank=1)


@pytest.mark.parametrize("index", ["rice", "delta"])
def test_damaged_gaps_are_told(index: str) -> None:
    assert damaged(index, range(0, 96, 11)) == {True, False}


@night
@pytest.mark.parametrize("index", ["rice", "delta"])
def test_damaged_gaps_of_all_kinds(index: str) -> None:
    assert damaged(index, range(112)) == {True, False}


@pytest.mark.parametrize("width", [3, 400])
def test_widths_that_no_sender_writes(width: int) -> None:
    with pytest.raises(PayloadError, match="field 'width' of rank 1 must be in"):
        CountedPlaces([[8], [width]], 0, [41], CountedCode("auto", False))


# ---- mutants --------------------------------------------------------------------------------------------------------
@triton.jit
def _one_more_bit(n, k, CODE: tl.constexpr):  # type: ignore[no-untyped-def]
    return k - k, k - k + 8, k, k


@triton.jit
def _nothing_there(at):  # type: ignore[no-untyped-def]
    return tl.load(at).to(tl.int32) * 0


@triton.jit
def _at_the_front(lists, task):  # type: ignore[no-untyped-def]
    return tl.load(lists + 8 * task + 7) * 0


@triton.jit
def _bound_of_the_first(least, row, EACH: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.load(least).to(tl.int32)


@triton.jit
def _nowhere(lists, bound, k, steps, inside):  # type: ignore[no-untyped-def]
    return bound - bound


@triton.jit
def _the_first(x, i, inside, full=False):  # type: ignore[no-untyped-def]
    return tl.load(x + i - i, inside, 0.0)


@triton.jit
def _none(x):  # type: ignore[no-untyped-def]
    return x.to(tl.int32, bitcast=True) * 0


def _not_added(rows: Tensor, many: TensorList, *_: Any, **__: Any) -> None:
    """Nothing is added up."""


AUTO = CountedCode("auto", False)
# module, what is replaced in it, by what, and a test above that fails then
MUTANTS: list[tuple[str, str, Any, Any]] = [
    ("variable_sparse.triton", "lay_out", _one_more_bit, lambda: widths_of("auto")),
    ("variable_sparse.triton", "count_at", _nothing_there, lambda: wires_and_sums(AUTO)),
    ("selection.triton.candidates", "bound_of", _bound_of_the_first, lambda: wires_and_sums(AUTO)),
    ("sparse.triton", "place_in", _at_the_front, lambda: wires_and_sums(AUTO)),
    ("index_codes.fixed.triton", "place_in", _at_the_front, lambda: wires_and_sums(AUTO)),
    ("sparse.triton", "first_of_each", _nowhere, lambda: wires_and_sums(AUTO)),
    ("variable_sparse.triton", "load_number", _the_first, lambda: wires_and_sums(AUTO, choose=sampled)),
    ("variable_sparse.triton", "magnitude", _none, lambda: wires_and_sums(AUTO, choose=sampled)),
    ("index_codes.variable.triton", "place_in", _at_the_front, lambda: wires_and_sums(CountedCode("rice", True))),
    ("variable_sparse.triton.gapped", "sum_tables", _not_added, lambda: wires_and_sums(CountedCode("delta", True))),
    ("variable_sparse.triton.gapped", "_fits", lambda *_: False, lambda: wires_and_sums(CountedCode("rice", True))),
]


@pytest.mark.parametrize(("module", "name", "mutant", "test"), MUTANTS)
def test_mutants_are_caught(module: str, name: str, mutant: Any, test: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"grace.kernels.{module}.{name}", mutant)
    with pytest.raises(CAUGHT):
        test()
