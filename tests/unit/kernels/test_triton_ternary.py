"""Triton kernels for ternary numbers and shortened runs of zeros, in Triton's interpreter, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from grace.errors import PayloadError
from grace.flags.finite import cpu_as_accelerator
from grace.kernels import (
    QuarticCode,
    QuarticPlaces,
    TensorList,
    choose_quartic_many,
    encode_ternary_many,
    sum_quartic_many,
    sum_ternary_many,
    write_quartic_many,
)
from grace.kernels.ternary.triton import _last_up_to
from tests.unit.kernels.coded_buckets import Coded
from tests.unit.kernels.triton_checks import CAUGHT, agree, interpreter, night
from tests.unit.kernels.triton_mutants import never

__all__ = ["interpreter"]

SMALL = (5, 352, 1)
# Of bytes in several tiles, with runs over their borders.
LARGE = (5120, 5121, 12_003, 5119, 30_000)
CODED = Coded(QuarticCode(1.5), QuarticPlaces, choose_quartic_many, write_quartic_many, sum_quartic_many)


def exchange(sizes: tuple[int, ...] = SMALL, density: float = 0.1, W: int = 2) -> None:
    CODED.exchange(sizes, density, W)


@pytest.mark.parametrize("density", [0.1, pytest.param(0.01, marks=night)])
def test_wires_and_their_sums(density: float) -> None:
    exchange(density=density)


def test_a_run_over_several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grace.kernels.ternary.triton.TILE", 32)
    exchange((700,), density=0.003, W=1)


@night
@pytest.mark.parametrize("density", [1.0, 0.1, 0.01, 0.0])
def test_several_tiles(density: float) -> None:
    exchange(LARGE, density, W=3)


@night
def test_rows_of_many_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grace.kernels.ternary.triton.TILE", 32)
    for first in range(1, 350, 50):
        exchange(tuple(range(first, first + 50, 3)), (0.3, 0.02)[first // 50 % 2], W=1)


# ---- wires of a fixed size ------------------------------------------------------------------------------------------
def fixed(rows: int = 2) -> None:
    """Wires of tensors of several rows each."""

    def draw() -> list[Tensor]:
        sizes = (70, 3)
        widths = [4 + -(-n // 5) for n in sizes for _ in range(rows)]
        many = TensorList(sizes, [sum(widths[:k]) for k in range(len(widths))], (), torch.device("cpu"), rows)
        made = torch.Generator().manual_seed(rows)
        xs, memories, rests = ([torch.randn(rows, n, generator=made) for n in sizes] for _ in range(3))
        many.point(xs, memories, rests)
        message = torch.zeros(2, sum(widths), dtype=torch.uint8)
        with cpu_as_accelerator():
            finite = [encode_ternary_many(row, many, 1.25) for row in message]
            kept = [rest.clone() for rest in rests]
            legal = sum_ternary_many(message, many, 0.5)
            xs[0][1, 5] = torch.nan
            finite.append(encode_ternary_many(message[1], many, 1.25))
            message[1, 4], message[1, -4:] = 250, 255
            wrong = sum_ternary_many(message, many, 0.5)
        assert finite[-1].tolist() == [False, True]
        assert wrong.tolist() == [False, False]
        return [message, legal, *finite, *kept]

    agree(draw, rows)


def test_wires_without_runs() -> None:
    fixed()


# ---- what no sender writes ------------------------------------------------------------------------------------------
# A byte of a wire, and what it becomes: another scale, a scale that is negative; counts; a code for more bytes, and for fewer.
DAMAGE = ((0, 7, True), (3, 0xBF, False), (4, 1, False), (7, 0x80, False), (9, 255, False), (-1, 5, True))


def damaged() -> None:
    CODED.damaged(DAMAGE, (200, 41), 0.05)


def test_damaged_wires_are_told() -> None:
    damaged()


@pytest.mark.parametrize("width", [8, 18])
def test_widths_that_no_sender_writes(width: int) -> None:
    with pytest.raises(PayloadError, match="field 'width' of rank 1 must be in"):
        QuarticPlaces([[11], [width]], 0, [41], CODED.code)


# ---- mutants --------------------------------------------------------------------------------------------------------
@triton.jit
def _none_before(lasts, tile, CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]
    return (tile - tile - 1).to(tl.int32)


@triton.jit
def _this_too(other, before, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    return _last_up_to(other, before, TILE) + 1


@triton.jit
def _to_zero(y):  # type: ignore[no-untyped-def]
    return y.to(tl.int32)


@triton.jit
def _lowest_first(byte, place):  # type: ignore[no-untyped-def]
    return byte % 3


@triton.jit
def _no_count(at):  # type: ignore[no-untyped-def]
    return tl.load(at).to(tl.int32) * 0 + 8


def _nothing_before(counts: Tensor, spans: Tensor) -> tuple[Tensor, Tensor]:
    return torch.zeros_like(counts), torch.full((len(counts), len(spans)), 7, dtype=torch.int32)


def tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    test_a_run_over_several_tiles(monkeypatch)


# what is replaced, by what, and a test above that fails then
MUTANTS: list[tuple[str, Any, Any]] = [
    ("_last_before", _none_before, tiles),
    ("_last_up_to", _this_too, lambda _: exchange((20,), 0.1, 1)),
    ("round_half_even", _to_zero, lambda _: exchange((20,), 0.1, 1)),
    ("digit_of", _lowest_first, lambda _: exchange((20,), 0.1, 1)),
    ("count_at", _no_count, lambda _: damaged()),
    ("mark_if", never, lambda _: fixed()),
    ("scan", _nothing_before, lambda _: exchange((20,), 0.1, 1)),
]


@pytest.mark.parametrize(("name", "mutant", "test"), MUTANTS)
def test_mutants_are_caught(name: str, mutant: Any, test: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"grace.kernels.ternary.triton.{name}", mutant)
    with pytest.raises(CAUGHT):
        test(monkeypatch)
