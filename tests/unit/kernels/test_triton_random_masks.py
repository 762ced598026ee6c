"""Triton kernels that draw, take and put subsets of the tensors of a bucket, in Triton's interpreter, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from grace.compute import backends
from grace.kernels import (
    Drawing,
    TensorList,
    add_subset,
    put_subsets_many,
    sum_subsets_many,
    take_subset,
    take_subsets_many,
)
from grace.kernels.random_masks.triton import _draw
from grace.methods.common.counts import count_kept
from grace.random import Stream
from tests.unit.kernels.native_checks import offset
from tests.unit.kernels.triton_checks import CAUGHT, agree, interpreter, night
from tests.unit.kernels.triton_mutants import memory_left_out, never

__all__ = ["interpreter"]

STEP = 2**31 + 7  # beyond int32
SOME = (1, 2, 31, 33, 70, 300)
BORDERS = (1023, 1024, 1025, 4096, 4097)  # tiles, and where subsets are drawn in another way


def drawing(sizes: tuple[int, ...], ratio: float, block: int | None, cyclic: bool = False) -> Drawing:
    return Drawing(tuple(count_kept(ratio, -(-n // (block or 1))) for n in sizes), block, cyclic)


def bucket(sizes: tuple[int, ...], drawn: Drawing, shift: int, memory: bool, name: str = "m") -> TensorList:
    """A bucket whose tensors begin at odd places; the third is not finite."""
    made = torch.Generator().manual_seed(len(sizes) + shift)
    xs = [offset(torch.randn(1, n, generator=made), (shift + t) % 4) for t, n in enumerate(sizes)]
    memories = [offset(torch.randn(1, n, generator=made), t % 3) for t, n in enumerate(sizes)]
    if len(sizes) > 2:
        xs[2][0, -1] = torch.inf
    places, at = [], 0
    for t, n in enumerate(sizes):
        places.append(4 * at)
        at += drawn.width(t, n)
    many = TensorList(sizes, places, [Stream(3, name, str(t), None, 0) for t in range(len(sizes))], torch.device("cpu"))
    many.point(xs, memories, [torch.full_like(x, 7.0) for x in xs]) if memory else many.point(xs)
    return many


def subsets(
    sizes: tuple[int, ...], ratio: float, block: int | None, shift: int = 1, memory: bool = True, cyclic: bool = False
) -> None:
    drawn = drawing(sizes, ratio, block, cyclic)
    total = sum(map(drawn.width, range(len(sizes)), sizes))
    left, weight = [0.25 * t for t in range(len(sizes))], [1 / 3 + t for t in range(len(sizes))]

    def draw() -> list[Tensor]:
        many, message = bucket(sizes, drawn, shift, memory), torch.full((total,), 9.0)
        finite = take_subsets_many(message, many, drawn, STEP, left)
        assert finite.tolist() == [t != 2 for t in range(len(sizes))]
        widths = torch.tensor([drawn.width(t, n) for t, n in enumerate(sizes)])
        message.masked_fill_(
            ~finite.repeat_interleave(widths), torch.nan
        )  # as communicators do: before, it means nothing
        rests = [] if many.rests is None else [rest for t, rest in enumerate(many.rests) if t != 2]
        taken = message.clone()
        message[0] = -0.0
        good = put_subsets_many(message, many, drawn, STEP, weight, many)
        return [taken, *rests, good, *many.xs]

    agree(draw, (sizes, ratio, block))


@pytest.mark.parametrize("block", [None, 1, 8])
def test_subsets_of_a_bucket(block: int | None) -> None:
    subsets(SOME, 0.3, block)
    subsets((5, 64, 1), 1.0, block, 0, memory=False)


@pytest.mark.parametrize(("sizes", "block"), [((257, 1025, 4097), None), (BORDERS, 100)])
def test_at_borders_of_tiles(sizes: tuple[int, ...], block: int | None) -> None:
    subsets(sizes, 0.05, block)


def test_blocks_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last turn of a cycle is short."""
    monkeypatch.setattr(f"{__name__}.STEP", 2**32 + 7)
    subsets((1, 33, 300), 0.3, 8, cyclic=True)
    monkeypatch.setattr(f"{__name__}.STEP", 19)
    subsets((4201,), 0.05, 1, cyclic=True)


def test_they_are_those_of_one_tensor() -> None:
    n, k = 300, 40
    drawn = Drawing((k,), None)
    many, stream = bucket((n,), drawn, 1, True), Stream(3, "m", "0", None, STEP)
    assert many.memories is not None
    assert many.rests is not None
    p, message = many.xs[0] + many.memories[0], torch.empty(k)
    with backends.using("triton"):
        take_subsets_many(message, many, drawn, STEP, [0.0])
        put_subsets_many(message, many, drawn, STEP, [1.5], many)
    wire, mean = take_subset(p, k, stream, 0.0), torch.zeros(1, n)
    add_subset([wire], mean, 1.5, stream)
    assert torch.equal(message, wire[0])
    assert torch.equal(many.rests[0], p)
    assert torch.equal(many.xs[0], mean)


def test_another_step_draws_again() -> None:
    many = bucket((300,), drawn := drawing((300,), 0.1, None), 0, False)
    with backends.using("triton"):
        first, second, message = torch.empty(30), torch.empty(30), torch.ones(30)
        take_subsets_many(first, many, drawn, 1, [0.0])
        take_subsets_many(second, many, drawn, 2, [0.0])
        assert not torch.equal(first, second)
        put_subsets_many(message, many, drawn, 1, [1.0], many)
    assert torch.equal(many.xs[0][0, Stream(3, "m", "0", None, 1).subset(300, 30)], message)


def test_products_that_overflow_are_told() -> None:
    many = bucket((40, 50), drawn := Drawing((5, 5), None), 0, False)
    message = torch.full((10,), 1e38)
    with backends.using("triton"):
        assert put_subsets_many(message, many, drawn, 0, [1.0, 8.0], many).tolist() == [True, False]


def sums(sizes: tuple[int, ...], ratio: float, block: int | None, rows: int = 2) -> None:
    """Messages of three workers, whose rests take the places of the tensors, and their sum; an inf in the last one's."""
    each = tuple(n for n in sizes for _ in range(rows))
    drawn = drawing(each, ratio, block)
    widths = list(map(drawn.width, range(len(each)), each))
    places = [4 * sum(widths[:row]) for row in range(len(each))]
    streams = [Stream(3, "m", str(t), None, 0) for t in range(len(sizes))]

    def draw() -> list[Tensor]:
        many, made = TensorList(sizes, places, streams, torch.device("cpu"), rows), torch.Generator().manual_seed(1)
        messages, out = torch.full((3, sum(widths)), 9.0), list[Tensor]()
        for message in messages:
            xs = [torch.randn(rows, n, generator=made) for n in sizes]
            many.point(xs, None, xs)
            out += [take_subsets_many(message, many, drawn, STEP, [0.25] * len(each)), *xs]
        out.append(messages.clone())
        messages[2, places[-1] // 4] = torch.inf
        xs = [torch.ones(rows, n) for n in sizes]
        many.point(xs)
        legal = sum_subsets_many(messages, many, drawn, STEP, [1 / 3] * len(each))
        assert legal.tolist() == [True] * (len(sizes) - 1) + [False]
        return [*out, *xs]

    agree(draw, (sizes, ratio, block))


@pytest.mark.parametrize("block", [None, 8])
def test_sums_of_messages(block: int | None) -> None:
    sums((1, 33, 300), 0.3, block)
    if block is not None:
        sums((1025, 4097), 0.3, block, 1)


@night
@pytest.mark.parametrize("block", [None, 1, 3, 32, 1000])
def test_sums_of_every_size(block: int | None) -> None:
    for first in range(1, 301, 60):
        sums(tuple(range(first, first + 60, 7)), 0.3, block)
    sums((*BORDERS, 9001), 0.05, block)


@night
@pytest.mark.parametrize("block", [None, 1, 3, 32, 1000])
@pytest.mark.parametrize("ratio", [0.001, 0.2, 1.0])
def test_subsets_of_many_sizes(ratio: float, block: int | None) -> None:
    for first in range(1, 301, 60):
        subsets(tuple(range(first, first + 60, 7)), ratio, block, first % 4, memory=first % 120 == 1)
    subsets((70_000, *BORDERS, 9001), ratio, block)
    if block is not None:
        subsets((300, *BORDERS, 9001), ratio, block, cyclic=True)


# ---- mutants --------------------------------------------------------------------------------------------------------
@triton.jit
def _as_they_stand(first, n, key0, key1, step, CHUNK: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    return first + tl.arange(0, TILE)


@triton.jit
def _not_permuted(i, inside, n, half, key0, key1, step):  # type: ignore[no-untyped-def]
    return tl.where(inside, i, 0)


@triton.jit
def _none_set(word):  # type: ignore[no-untyped-def]
    return word - word


@triton.jit
def _all_sent(  # type: ignore[no-untyped-def]
    heads, words, before, task, first, lane, inside, full, unit, LISTED: tl.constexpr
):
    return inside, lane


@triton.jit
def _first_of_each(index, place, k, n, tile, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    j = tl.arange(0, TILE)
    return place // 4 + j, j < 1, tl.load(index + place // 4 + j, j < 1, 0)


@triton.jit
def _first_message(wire, at, inside, weight, mark, W, stride, LOOKS: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.load(wire + at, inside, 0.0) * weight


@triton.jit
def _same_turn(  # type: ignore[no-untyped-def]
    table, programs, kept, heads, index, words, unit, step, turn,
    LISTED: tl.constexpr, CYCLIC: tl.constexpr, SORTED: tl.constexpr, RANKED: tl.constexpr, CHUNK: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    _draw(table, programs, kept, heads, index, words, unit, step, 0, LISTED, CYCLIC, SORTED, RANKED, CHUNK, TILE)


# what is replaced in subsets, by what, and a test above that fails then
MUTANTS: list[tuple[str, Any, Any]] = [
    ("load_sum", memory_left_out, lambda: subsets((70,), 0.3, None)),
    ("mark_if", never, lambda: subsets((5, 6, 7), 0.3, None)),
    ("rank_of", _as_they_stand, lambda: subsets((70,), 0.3, None)),
    ("walk", _not_permuted, lambda: subsets((4097,), 0.01, None)),
    ("_draw", _same_turn, lambda: subsets((70,), 0.6, 8, cyclic=True)),
    ("bits_set", _none_set, lambda: subsets((70,), 0.3, 8)),
    ("drawn_at", _all_sent, lambda: subsets((70,), 0.3, None)),
    ("listed_at", _first_of_each, lambda: subsets((70,), 0.3, None)),
    ("_said_at", _first_message, lambda: sums((33,), 0.3, None)),
    ("mark_if", never, lambda: sums((33,), 0.3, 8)),
]


@pytest.mark.parametrize(("name", "mutant", "test"), MUTANTS)
def test_mutants_are_caught(name: str, mutant: Any, test: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"grace.kernels.random_masks.triton.{name}", mutant)
    with pytest.raises(CAUGHT):
        test()
