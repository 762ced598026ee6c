"""Triton kernels for numbers of as many bits as their tags say, in Triton's interpreter, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from grace.errors import PayloadError
from grace.kernels import TaggedCode, TaggedPlaces, choose_tagged_many, sum_tagged_many, write_tagged_many
from grace.kernels.tagged_fixed_point.triton import _bytes_at
from tests.unit.kernels.coded_buckets import Coded
from tests.unit.kernels.triton_checks import CAUGHT, interpreter, night
from tests.unit.kernels.triton_mutants import never

__all__ = ["interpreter"]

SMALL = (5, 90, 3)
LARGE = (1023, 1024, 4097, 1025)


def coded(p: int, relative: bool) -> Coded:
    return Coded(TaggedCode(p, relative), TaggedPlaces, choose_tagged_many, write_tagged_many, sum_tagged_many)


def exchange(
    p: int = 10, relative: bool = True, sizes: tuple[int, ...] = SMALL, density: float = 0.3, W: int = 2
) -> None:
    coded(p, relative).exchange(sizes, density, W)


@pytest.mark.parametrize(("p", "relative"), [(10, True), (7, False)])
def test_wires_and_their_sums(p: int, relative: bool) -> None:
    exchange(p, relative)


def test_counts_of_several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grace.kernels.tagged_fixed_point.triton.TILE", 32)
    exchange(6, True, (100,), 0.2, 1)


@night
@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("p", range(6, 15))
def test_bounds_of_all_kinds(p: int, relative: bool) -> None:
    exchange(p, relative, LARGE, (1.0, 0.01)[p % 2], 3)


@night
def test_rows_of_many_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grace.kernels.tagged_fixed_point.triton.TILE", 32)
    for first in range(1, 100, 20):
        exchange(10, first % 40 > 20, tuple(range(first, first + 20, 2)), 0.3, 1)


def scaled(power: float, relative: bool) -> None:
    """All numbers near 2**power."""

    def choose(like: Tensor, many: Any, code: TaggedCode) -> Any:
        for x, memory in zip(many.xs, many.memories, strict=True):
            x.copy_(torch.tensor([1.0, -1.0, 0.5, 2.0**-9, -0.0]).mul(2.0**power)[: x.shape[1]])
            memory.zero_()
        return choose_tagged_many(like, many, code)

    Coded(TaggedCode(14, relative), TaggedPlaces, choose, write_tagged_many, sum_tagged_many).exchange((5, 2), 1.0, 1)


@pytest.mark.parametrize("power", [127, -149, pytest.param(-126, marks=night), pytest.param(-127, marks=night)])
def test_numbers_at_the_ends(power: float) -> None:
    scaled(power, True)


# ---- what no sender writes ------------------------------------------------------------------------------------------
# A byte of a wire, and what it becomes: other exponents, of which two are too small; tags of fewer bits and of more; a number
# that is another, and one that is not finite.
DAMAGE = (
    (0, 5, True), (0, 0x82, True), (0, 0x81, False), (0, 0x80, False), (1, 0, True), (1, 0xFF, False), (-1, 0x33, True)
)  # fmt: skip


def damaged() -> None:
    coded(10, True).damaged(DAMAGE, (20, 41), 0.5)


def unbounded() -> None:
    """The last four bytes are a number, which becomes a NaN, or another."""
    coded(6, False).damaged(((-1, 0x7F, False), (-1, 0xBF, True)), (20, 41), 1.0)


def test_damaged_wires_are_told() -> None:
    damaged()
    unbounded()


@pytest.mark.parametrize("width", [11, 177])
def test_widths_that_no_sender_writes(width: int) -> None:
    with pytest.raises(PayloadError, match="field 'width' of rank 1 must be in"):
        TaggedPlaces([[12], [width]], 0, [41], TaggedCode(10, True))


# ---- mutants --------------------------------------------------------------------------------------------------------
@triton.jit
def _without_words(tag, begins, plane, total, b):  # type: ignore[no-untyped-def]
    eight, sixteen, whole, size = _bytes_at(tag, begins, plane, total, b)
    return eight, sixteen, whole - 2, size


@triton.jit
def _signless(code, BITS: tl.constexpr, unit):  # type: ignore[no-untyped-def]
    return (code & ((1 << BITS) - 1)).to(tl.float32) * unit


@triton.jit
def _normal_only(exponent):  # type: ignore[no-untyped-def]
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


def _nothing_before(counts: Tensor, spans: Tensor) -> tuple[Tensor, Tensor]:
    return torch.zeros_like(counts), torch.full((len(counts), len(spans)), 7, dtype=torch.int32)


# what is replaced, by what, and a test above that fails then
MUTANTS: list[tuple[str, Any, Any]] = [
    ("_bytes_at", _without_words, lambda: exchange(6, False, (20,), 1.0, 1)),
    ("_value_of", _signless, lambda: exchange(6, False, (20,), 1.0, 1)),
    ("any_power_of_two", _normal_only, lambda: scaled(127, True)),
    ("mark_if", never, damaged),
    ("scan", _nothing_before, lambda: exchange(6, False, (20,), 1.0, 1)),
]


@pytest.mark.parametrize(("name", "mutant", "test"), MUTANTS)
def test_mutants_are_caught(name: str, mutant: Any, test: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"grace.kernels.tagged_fixed_point.triton.{name}", mutant)
    with pytest.raises(CAUGHT):
        test()
