"""Triton kernels for codes of gaps of the lists of a bucket, in Triton's interpreter, to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from grace.compute import backends
from grace.errors import PayloadError
from grace.flags.finite import cpu_as_accelerator
from grace.kernels import Chosen, TensorList, choose_listed_many, sum_gap_pairs_many, write_gap_pairs_many
from grace.kernels.index_codes.variable import GapPairs, GapPlaces
from grace.kernels.index_codes.variable import triton as variable
from grace.kernels.index_codes.variable.triton import _blocks_of, _delta_gaps, _gaps_of, _rice_at
from grace.kernels.sparse import ScaledCodes
from tests.unit.kernels.native_checks import offset
from tests.unit.kernels.triton_checks import CAUGHT, agree, interpreter, night
from tests.unit.kernels.triton_mutants import never

__all__ = ["interpreter"]

Shares = dict[int, int]  # n -> k
SMALL: Shares = {5: 2, 70: 9, 300: 131, 1: 1}
BORDERS: Shares = {1023: 128, 1024: 127, 4097: 129, 1025: 1023, 2049: 1024, 9000: 1025, 8: 8}
SIGNS = ScaledCodes(bits=1, count=2, step=2, unit=1)
CODES = ("rice", "delta")
# Bits of a code: with another r, another place, one that is too large, and more of them; and with other widths and places.
BITS = {"rice": (0, 9, 24, 39), "delta": (4, 9, 20)}


def pairs_of(index: str, shares: Shares, narrow: bool = False, grid: ScaledCodes | None = None) -> GapPairs:
    return GapPairs(index, shares.__getitem__, narrow, grid)


def bucket(shares: Shares) -> TensorList:
    """Tensors that begin at odd places."""
    many = TensorList(list(shares), (), (), torch.device("cpu"))
    many.point([offset(torch.full((1, n), 5.0), t % 4) for t, n in enumerate(shares)])
    return many


def chosen(many: TensorList, code: GapPairs, rank: int, clustered: bool) -> Chosen:
    """Values at random places, or at places of which most are near the end."""
    made, index = torch.Generator().manual_seed(rank), list[Tensor]()
    lists = code.lists(many.sizes)
    for n, k in zip(many.sizes, lists.kept, strict=True):
        places = torch.arange(n - k + 1, n) if clustered else torch.randperm(n, generator=made)[:k]
        first = torch.zeros(int(clustered), dtype=torch.int64)  # and the first, which makes one long gap
        index.append(torch.cat((first, places)).sort().values)
    values = torch.randn(sum(lists.kept), generator=made)
    fields = (values.bfloat16() if code.narrow else values).view(torch.uint8)
    if code.grid is not None:
        scales = [torch.cat((values[:1].abs().view(torch.uint8), fields[: size - 4])) for size in lists.before]
        fields = torch.cat(scales)
    return choose_listed_many(torch.cat(index), fields, torch.ones(len(many), dtype=torch.bool), many, lists)


def messages(many: TensorList, code: GapPairs, clustered: bool = False, W: int = 2) -> tuple[GapPlaces, Tensor]:
    """Positions of the wires of W workers, and these."""
    choices = [chosen(many, code, rank, clustered) for rank in range(W)]
    widths = [choice.widths.tolist() for choice in choices]
    rows = torch.zeros(W, GapPlaces(widths, 0, many.sizes, code).size, dtype=torch.uint8)
    for rank, row in enumerate(rows):
        write_gap_pairs_many(row, many, code, choices[rank], GapPlaces(widths, rank, many.sizes, code))
    return GapPlaces(widths, 0, many.sizes, code), rows


def exchange(code: GapPairs, shares: Shares = SMALL, clustered: bool = False, W: int = 2) -> None:
    def draw() -> list[Tensor]:
        with cpu_as_accelerator():
            many = bucket(shares)
            places, rows = messages(many, code, clustered, W)
            legal = sum_gap_pairs_many(rows, many, code, places, 0.3)
        assert legal.all()
        return [torch.tensor(places.widths), rows, *many.xs]

    agree(draw, (code, shares, clustered))


@pytest.mark.parametrize(
    "code",
    [
        pairs_of("rice", SMALL),
        pairs_of("delta", SMALL, narrow=True),
        pytest.param(pairs_of("rice", SMALL, grid=SIGNS), marks=night),
    ],
    ids=["rice", "delta, bfloat16", "rice, signs"],
)
def test_wires_and_their_sums(code: GapPairs) -> None:
    exchange(code)


@pytest.mark.parametrize("index", ["delta", pytest.param("rice", marks=night)])
def test_one_long_gap(index: str) -> None:
    exchange(pairs_of(index, {300: 131}), {300: 131}, clustered=True)


def test_more_wires_than_are_added_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variable, "AT_ONCE", 1)
    exchange(pairs_of("rice", {20: 9}), {20: 9})


@night
@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("index", CODES)
def test_lists_of_several_tiles(index: str, clustered: bool) -> None:
    exchange(pairs_of(index, BORDERS), BORDERS, clustered, 3)
    exchange(pairs_of(index, BORDERS, grid=SIGNS), BORDERS, clustered)
    sparse = {70_000: 3, 300_000: 1500}
    exchange(pairs_of(index, sparse), sparse, clustered)


@night
@pytest.mark.parametrize("index", CODES)
def test_lists_of_every_size(index: str) -> None:
    for first in range(1, 301, 20):
        share = (0.02, 0.3, 1.0)[first // 20 % 3]
        shares = {n: max(1, int(share * n)) for n in range(first, first + 20)}
        exchange(pairs_of(index, shares, narrow=first == 21), shares, W=1)


def damaged(index: str, bits: Sequence[int], shares: Shares | None = None) -> set[bool]:
    """The same wires are refused as by the specification, whatever bit of a code is another: whether some were."""
    shares = shares or {40: 5, 41: 6}
    code, answers = pairs_of(index, shares), set[bool]()
    with cpu_as_accelerator():
        with backends.using("reference"):
            places, rows = messages(bucket(shares), code)
        n, at = next(iter(shares)), places.begins[0] + 4 + places.lists.before[0]
        for bit in bits:
            spoiled = rows.clone()
            spoiled[1, at + min(bit // 8, places.widths[1][0] - places.lists.before[0] - 1)] ^= 1 << bit % 8
            legal = dict[str, list[bool]]()
            for backend in ("reference", "triton"):
                many = bucket(shares)
                with backends.using(backend):
                    try:
                        legal[backend] = sum_gap_pairs_many(spoiled, many, code, places, 1.0).tolist()
                    except PayloadError:
                        legal[backend] = [False, True]
            assert legal["reference"] == legal["triton"], (index, bit, n)
            assert legal["triton"][1]
            answers.add(legal["triton"][0])
    return answers


@pytest.mark.parametrize("index", CODES)
def test_damaged_lists_are_told(index: str) -> None:
    assert damaged(index, BITS[index]) == {True, False}


@night
@pytest.mark.parametrize("index", CODES)
def test_damage_of_all_kinds(index: str) -> None:
    assert damaged(index, range(80)) == {True, False}
    assert damaged(index, range(0, 2400, 31), {9001: 1100, 50: 1}) == {True, False}


@pytest.mark.parametrize("width", [21, 400])
def test_widths_that_no_sender_writes(width: int) -> None:
    code = pairs_of("rice", {41: 4})
    with pytest.raises(PayloadError, match="field 'width' of rank 1 must be in"):
        GapPlaces([[20], [width]], 0, [41], code)


# ---- mutants --------------------------------------------------------------------------------------------------------
@triton.jit
def _places(index, j, inside):  # type: ignore[no-untyped-def]
    return tl.load(index + j, inside, 0)


@triton.jit
def _gaps_but_the_first(index, j, inside):  # type: ignore[no-untyped-def]
    return tl.where(j > 0, _gaps_of(index, j, inside), 0)


@triton.jit
def _one_more_bit(gap, tile, k, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    width, size = _blocks_of(gap, tile, k, TILE)
    return width + 1, size


@triton.jit
def _nowhere(lists, bound, k, steps, inside, low, raised):  # type: ignore[no-untyped-def]
    return bound - bound


@triton.jit
def _next_field(at, i, inside, width, bits):  # type: ignore[no-untyped-def]
    return i - i


@triton.jit
def _no_low_bits(base, n, k, size):  # type: ignore[no-untyped-def]
    low, packed, unary, legal = _rice_at(base, n, k, size)
    return low - low, packed, unary, legal


@triton.jit
def _no_gaps(base, begin, tile, k, size, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    gap, width = _delta_gaps(base, begin, tile, k, size, TILE)
    return gap - gap, width


def small(index: str) -> None:
    exchange(pairs_of(index, {300: 40}), {300: 40}, W=1)


# what is replaced, by what, and a test above that fails then
MUTANTS: list[tuple[str, Any, Any]] = [
    ("_gaps_of", _places, lambda: small("delta")),
    ("_gaps_of", _gaps_but_the_first, lambda: small("rice")),
    ("_blocks_of", _one_more_bit, lambda: small("delta")),
    ("first_reaching", _nowhere, lambda: small("rice")),
    ("load_bits", _next_field, lambda: small("rice")),
    ("_rice_at", _no_low_bits, lambda: small("rice")),
    ("_delta_gaps", _no_gaps, lambda: small("delta")),
    ("mark_if", never, lambda: damaged("rice", BITS["rice"][2:])),
    ("mark_if", never, lambda: damaged("delta", BITS["delta"][2:])),
]


@pytest.mark.parametrize(("name", "mutant", "test"), MUTANTS)
def test_mutants_are_caught(name: str, mutant: Any, test: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"grace.kernels.index_codes.variable.triton.{name}", mutant)
    with pytest.raises(CAUGHT):
        test()
