"""Taking and adding subsets as Triton kernels.

What is drawn from the tensors of a bucket is noted twice: as the list of its places, if numbers are drawn, and as a bit for
each number or block, so that the pass over all numbers knows which of them are sent. A block's place in what its tensor sends
is the count of bits before its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE, Marks, check_rows, even_runs, launch
from grace.flags.capturing import step_word
from grace.kernels.blocks import block_count
from grace.kernels.random_masks import Drawing, check_wires
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.triton import key_of, numbers_of, tensor_of, tile_of, wire_of
from grace.kernels.triton import load_sum, load_tile, magnitude, mark_if, store_tile
from grace.kernels.triton.bit_streams import bits_set
from grace.random.reference import SORTED_SUBSET, half_bits
from grace.random.triton import DRAWN, rank_of, walk

if TYPE_CHECKING:
    from grace.random import Stream

_RANKED, _CHUNK = 32, 256  # numbers whose ranks a program finds, and how many it compares them with at once
_WORD = 32  # bits of a word
_SCAN = 1024  # words that a program counts at once


@triton.jit(do_not_specialize=["left"])
def _take(rows, index, out, n, k, left, HAS_LEFT: tl.constexpr, TILE: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = j < k
    at = rows + row * n + tl.load(index + j, inside, 0)
    value = tl.load(at, inside, 0.0)
    tl.store(out + row * k + j, value, inside)
    if HAS_LEFT:
        tl.store(at, value * left, inside)


@triton.jit(do_not_specialize=["weight"])
def _add(wires, index, out, W, stride, row_stride, n, k, weight, TILE: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = j < k
    at = out + row * n + tl.load(index + j, inside, 0)
    total = tl.load(at, inside, 0.0)
    base = (wires + row * row_stride).to(tl.pointer_type(tl.float32))
    for _ in range(W):
        total += tl.load(base + j, inside, 0.0) * weight
        base += stride
    tl.store(at, total, inside)


def take_subset(rows: Tensor, k: int, rng: Stream, left: float | None = None) -> Tensor:
    check_rows(rows=rows)
    b, n = rows.shape
    index = rng.subset(n, k, rows.device)
    out = rows.new_empty(b, k)
    launch(_take, (block_count(k, TILE), b), rows, index, out, n, k, 0.0 if left is None else left,
           HAS_LEFT=left is not None, TILE=TILE)  # fmt: skip
    return out


def add_subset(received: Sequence[Tensor], out: Tensor, weight: float, rng: Stream) -> None:
    (b, n), k = out.shape, check_wires(received, out)
    check_rows(out=out)
    index = rng.subset(n, k, out.device)
    aligned = [w if w.stride(-1) == 1 else w.contiguous() for w in received] if k else []
    for run in even_runs([w.view(torch.uint8) for w in aligned], b, 4 * k):
        launch(_add, (block_count(k, TILE), b), run.first, index, out, run.count, run.stride // 4, run.row, n, k, weight,
               TILE=TILE)  # fmt: skip


# ---- of many tensors ------------------------------------------------------------------------------------------------
@triton.jit(do_not_specialize=["step", "turn"])
def _draw(
    table, programs, kept, heads, index, words, unit, step, turn,
    LISTED: tl.constexpr, CYCLIC: tl.constexpr, SORTED: tl.constexpr, RANKED: tl.constexpr, CHUNK: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Sets the bits of what is drawn in ``words``, zeros before, and with LISTED writes the places into ``index``. CYCLIC: of
    the whole order, those whose turn it is. A program ranks RANKED numbers of at most SORTED, or draws TILE.

    ``kept [T, 2]``: how many are drawn, and the bits of a half of the network that draws from more than SORTED.
    """
    task, tile = tile_of(programs)
    place, n = wire_of(table, task)
    n = (n + unit - 1) // unit
    key0, key1 = key_of(table, task)
    k, half = tl.load(kept + 2 * task), tl.load(kept + 2 * task + 1)
    begin = k - k
    if CYCLIC:
        begin = turn % ((n + k - 1) // k) * k
    index += place // 4
    words += tl.load(heads + task)
    if (k < n) & (n <= SORTED):
        first = (tile * RANKED).to(tl.int32)
        ranked = first + tl.arange(0, RANKED)
        rank = rank_of(first, n.to(tl.int32), key0, key1, step, CHUNK, RANKED)
        _note(index, words, rank, ranked, (ranked < n) & (rank >= begin) & (rank < begin + k), LISTED)
    else:
        slot = tile * TILE + tl.arange(0, TILE)
        i, keep = slot, slot < k
        if k < n:
            i = begin + i
            keep = keep & (i < n)
            i = walk(i, keep, n, half, key0, key1, step)
        _note(index, words, slot, i, keep, LISTED)


@triton.jit
def _note(index, words, slot, i, keep, LISTED: tl.constexpr):
    """Sets the bits of i, and with LISTED says them in the slots of a list."""
    tl.atomic_or(words + (i >> 5), tl.full(i.shape, 1, tl.int32) << (i & 31).to(tl.int32), keep)
    if LISTED:
        tl.store(index + slot, i.to(tl.int64), keep)


@triton.jit
def _count(table, programs, heads, words, before, unit, CHUNK: tl.constexpr):
    """``before``: how many bits of a tensor are set in the words before each of its own. A program takes a tensor."""
    task, _tile = tile_of(programs)
    _place, n = wire_of(table, task)
    head, count = tl.load(heads + task), (n + 32 * unit - 1) // (32 * unit)
    lane = tl.arange(0, CHUNK)
    carry = tl.zeros((1,), tl.int32)
    for first in range(0, count, CHUNK):
        at, inside = head + first + lane, first + lane < count
        own = bits_set(tl.load(words + at, inside, 0))
        up_to = tl.cumsum(own, 0)
        tl.store(before + at, carry + up_to - own, inside)
        carry += tl.sum(own, 0)


@triton.jit
def drawn_at(heads, words, before, task, first, lane, inside, full, unit, LISTED: tl.constexpr):
    """(whether the numbers ``first + lane`` are sent; if blocks are, where in what the tensor sends). ``first``: a multiple of
    32.
    """
    begin = first // unit
    behind = (first - begin * unit).to(tl.int32) + lane
    block = behind // unit + (begin & 31).to(tl.int32)
    at = tl.load(heads + task) + (begin >> 5)
    word = load_tile(words + at + (block >> 5), inside, full)
    bit = (block & 31).to(tl.int32)
    sent = ((word >> bit) & 1) > 0
    where = lane
    if LISTED == 0:
        below = word & ((1 << bit) - 1)
        where = (load_tile(before + at + (block >> 5), inside, full) + bits_set(below)) * unit + behind % unit
    return sent, where


@triton.jit
def listed_at(index, place, k, n, tile, TILE: tl.constexpr):
    """(where this program's share of a list of k lies; whether it does; what is listed there)"""
    share = (k * TILE + n - 1) // n  # the programs of n numbers take all of it
    lane = tl.arange(0, TILE)
    j = tile * share + lane
    inside = (lane < share) & (j < k)
    return place // 4 + j, inside, tl.load(index + place // 4 + j, inside, 0)


@triton.jit
def _take_drawn(
    table, programs, x, kept, heads, wire, bad, index, words, before, unit, left,
    EVEN: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_REST: tl.constexpr, SENDS: tl.constexpr, LISTED: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """SENDS: what is drawn is written to the wire."""
    task, tile = tile_of(programs)
    place, n = wire_of(table, task)
    x, start = numbers_of(table, task, x, EVEN)
    x, e = x + start, tensor_of(table, task, 1, EVEN) + start
    first, full = tile * TILE, (tile + 1) * TILE <= n
    lane = tl.arange(0, TILE)
    inside = lane < tl.minimum(n - first, TILE).to(tl.int32)
    p = load_sum(x + first, e + first, lane, inside, HAS_MEMORY, full)
    mark_if(bad + task, magnitude(p) >= 0x7F800000)
    sent, where = drawn_at(heads, words, before, task, first, lane, inside, full, unit, LISTED)
    if HAS_REST:
        rest = tl.where(sent, p * tl.load(left + task), p)
        store_tile(tensor_of(table, task, 2, EVEN) + start + first + lane, rest, inside, full)
    if SENDS:
        if LISTED:
            at, listed, i = listed_at(index, place, tl.load(kept + 2 * task), n, tile, TILE)
            tl.store(wire + at, load_sum(x, e, i, listed, HAS_MEMORY), listed)
        else:
            tl.store(wire + place // 4 + where, p, inside & sent)


@triton.jit
def _said_at(wire, at, inside, weight, mark, W, stride, LOOKS: tl.constexpr):
    """The numbers of W messages there, times weight and added up in their order; 0 outside. Sets the status flag where the
    sum, or if it LOOKS at them one of the numbers, is not finite.
    """
    total, largest = tl.zeros(at.shape, tl.float32), tl.zeros(at.shape, tl.int32)
    for _ in range(W):
        number = tl.load(wire + at, inside, 0.0)
        largest = tl.maximum(largest, magnitude(number))
        total += number * weight
        wire += stride
    if LOOKS == 0:
        largest = magnitude(total)
    mark_if(mark, largest >= 0x7F800000)
    return total


@triton.jit(do_not_specialize=["W", "stride"])
def _put_drawn(
    table, programs, x, kept, heads, wire, bad, index, words, before, unit, left, W, stride,
    LOOKS: tl.constexpr, EVEN: tl.constexpr, LISTED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Each number is written once: by the program that has its place, or by the one that has what is sent for it."""
    task, tile = tile_of(programs)
    place, n = wire_of(table, task)
    x, start = numbers_of(table, task, x, EVEN)
    x += start
    weight = tl.load(left + task)
    first, full = tile * TILE, (tile + 1) * TILE <= n
    lane = tl.arange(0, TILE)
    inside = lane < tl.minimum(n - first, TILE).to(tl.int32)
    sent, where = drawn_at(heads, words, before, task, first, lane, inside, full, unit, LISTED)
    zero = tl.zeros((TILE,), tl.float32)
    if LISTED:
        tl.store(x + first + lane, zero, inside & (sent == 0))
        at, listed, i = listed_at(index, place, tl.load(kept + 2 * task), n, tile, TILE)
        tl.store(x + i, _said_at(wire, at, listed, weight, bad + task, W, stride, LOOKS), listed)
    else:
        received = _said_at(wire, place // 4 + where, inside & sent, weight, bad + task, W, stride, LOOKS)
        store_tile(x + first + lane, received, inside, full)


class Subsets:
    """Random subsets of the tensors of a bucket, as kernels read them.

    step: the one for which it was drawn last; None: it was not. index: the places of all tensors, where their wires begin.
    """

    def __init__(self, many: TensorList, drawing: Drawing):
        self._many, self._drawing, self.step = many, drawing, None
        self._counts = [drawing.count(n) for n in many.sizes]
        device, words = many.device, sum(block_count(count, _WORD) for count in self._counts)
        self._words = torch.empty(words, dtype=torch.int32, device=device)
        self._before = torch.empty_like(self._words) if drawing.block is not None else None
        total = max(place // 4 + k for place, k in zip(many.places, drawing.kept, strict=True))
        self.index = torch.empty(total, dtype=torch.int64, device=device) if drawing.block is None else None

    @staticmethod
    def of(many: TensorList, drawing: Drawing) -> Subsets:
        """Tables of a bucket, which are made once."""
        return many.once((Subsets, drawing), lambda: Subsets(many, drawing))

    def draw(self, step: int) -> None:
        """Draws what the streams of this step say."""
        many, drawing = self._many, self._drawing
        self._words.zero_()
        tiles = many.pairs((Subsets, drawing, "draw"), lambda: list(map(_programs, self._counts, drawing.kept)))
        of, turn = (0, step) if drawing.cyclic else (step, None)
        launch(_draw, (tiles.shape[0],), many.table, tiles, self._kept(), self._heads(), self.index, self._words, drawing.unit,
               step_word(of, many.device), turn, LISTED=drawing.block is None, CYCLIC=drawing.cyclic, SORTED=SORTED_SUBSET,
               RANKED=_RANKED, CHUNK=_CHUNK, TILE=DRAWN)  # fmt: skip
        if self._before is not None:
            each = many.pairs("each", lambda: [1] * len(many))
            launch(_count, (len(each),), many.table, each, self._heads(), self._words, self._before, drawing.unit,
                   CHUNK=_SCAN)  # fmt: skip
        self.step = step

    def places(self, like: Tensor, step: int) -> Tensor:
        """int64: what is drawn in this step, if numbers are, and their wires lie side by side. ``like``: on the device."""
        assert self.index is not None
        self._many.point([like] * len(self._many))
        self.draw(step)
        return self.index

    def take(self, message: Tensor, left: Sequence[float]) -> Tensor:
        """As :func:`grace.kernels.random_masks.take_subsets_many`."""
        many, marks = self._many, self._many.marks()
        if self._before is not None:
            message.zero_()
        keeps, listed = many.rests is not None, self._before is None
        # a program reads at the places of a list what is another's, which is to be there still
        turns = ((True, False), (False, True)) if listed and many.in_place else ((True, keeps),)
        for sends, has_rest in turns:
            launch(_take_drawn, *self._arguments(many, message, marks, left), EVEN=many.even,
                   HAS_MEMORY=many.memories is not None, HAS_REST=has_rest, SENDS=sends, LISTED=listed,
                   TILE=TILE)  # fmt: skip
        return many.all_of(marks.clean)

    def put(self, messages: Tensor, weight: Sequence[float], into: TensorList, *, looks: bool) -> Tensor:
        """The sums over ``messages [W, s]`` float32. If it ``looks`` at their numbers, it is as
        :func:`grace.kernels.random_masks.sum_subsets_many`, or at the sums, as
        :func:`grace.kernels.random_masks.put_subsets_many`.
        """
        marks = self._many.marks()
        launch(_put_drawn, *self._arguments(into, messages, marks, weight), len(messages), messages.stride(0), LOOKS=looks,
               EVEN=into.even, LISTED=self._before is None, TILE=TILE)  # fmt: skip
        return into.all_of(marks.clean)

    def _arguments(self, of: TensorList, message: Tensor, marks: Marks, factors: Sequence[float]) -> tuple[object, ...]:
        many, tiles = self._many, self._many.tiles(TILE)
        factors = tuple(factors)
        return (
            (tiles.shape[0],), of.table, tiles, of.like, self._kept(), self._heads(), message, marks.clean, self.index,
            self._words, self._before, self._drawing.unit, many.numbers(("factors", factors), lambda: factors, torch.float32),
        )  # fmt: skip

    def _kept(self) -> Tensor:
        halves = map(half_bits, self._counts)
        flat = [number for pair in zip(self._drawing.kept, halves, strict=True) for number in pair]
        return self._many.numbers((Subsets, self._drawing, "kept"), lambda: flat, torch.int64)

    def _heads(self) -> Tensor:
        return self._many.heads(_WORD * self._drawing.unit)


def _programs(count: int, kept: int) -> int:
    """Number of programs that draw so many of ``count``."""
    return block_count(count, _RANKED) if kept < count <= SORTED_SUBSET else block_count(kept, DRAWN)


def take_subsets_many(message: Tensor, many: TensorList, drawing: Drawing, step: int, left: Sequence[float]) -> Tensor:
    subsets = Subsets.of(many, drawing)
    subsets.draw(step)
    return subsets.take(message, left)


def put_subsets_many(
    message: Tensor, many: TensorList, drawing: Drawing, step: int, weight: Sequence[float], into: TensorList
) -> Tensor:
    return _drawn(many, drawing, step).put(message[None], weight, into, looks=False)


def sum_subsets_many(rows: Tensor, many: TensorList, drawing: Drawing, step: int, weight: Sequence[float]) -> Tensor:
    return _drawn(many, drawing, step).put(rows, weight, many, looks=True)


def _drawn(many: TensorList, drawing: Drawing, step: int) -> Subsets:
    """The subsets of this step, drawn anew unless they were drawn last."""
    subsets = Subsets.of(many, drawing)
    if subsets.step != step:
        subsets.draw(step)
    return subsets
