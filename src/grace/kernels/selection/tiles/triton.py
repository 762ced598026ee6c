"""How kernels of selection look at rows: their sums with a memory, the keys of these, and notes of what may be selected.

The key of a number is its magnitude's 31 bits: an integer in the order of magnitudes. Only the first pass looks at all
numbers. What may be selected after it is noted: in tiles of 4,096 numbers, each with room for 256 places; a tile with more is
read whole again.

Kernels take rows ``[b, n]``, or with MANY those of several tensors. HELD: their sums with the memory are in the rests.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import Marks, check_rows, launch
from grace.flags.finite import Flag
from grace.kernels.blocks import block_count
from grace.kernels.many import Many
from grace.kernels.many.triton import numbers_of, tensor_of, tile_of, wire_of
from grace.kernels.triton import load_number, load_sum, magnitude, mark_if, scan

_TILE, ROOM = 4096, 256  # numbers of a tile, and how many of them are noted
UPPER, LOWER = 2048, 1024  # bins of the first histogram, and of the other two
MOST = (1 << 31) - 1 - _TILE


@triton.jit
def key_of_number(p, CLAMP: tl.constexpr):
    """The magnitudes' bits; with ``CLAMP`` a NaN counts as infinite."""
    key = magnitude(p)
    if CLAMP:
        key = tl.minimum(key, 0x7F800000)
    return key


@triton.jit
def row_at(table, programs, x, n, tiles, HELD: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr):
    """What a program looks at: (its row, which of its tiles, which of all tiles, x, where the row starts in it, n)."""
    if MANY:
        task, tile = tile_of(programs)
        at = tl.program_id(0).to(tl.int64)
        x, start = numbers_of(table, task, x, EVEN)
        if HELD:
            x = tensor_of(table, task, 2, EVEN)
        _place, n = wire_of(table, task)
    else:
        task = tl.program_id(1).to(tl.int64)
        tile = tl.program_id(0).to(tl.int64)
        n = tile - tile + n
        at, start = task * tiles + tile, task * n
    return task, tile, at, x, start, n


@triton.jit
def kept_of(kept, task, k, MANY: tl.constexpr):
    """(how many numbers of a row are selected, where they are in the output)"""
    if MANY:
        k = tl.load(kept + 2 * task)
        first = tl.load(kept + 2 * task + 1)
    else:
        first = task * k
    return k, first


@triton.jit
def bound_of(least, row, EACH: tl.constexpr):
    """The least key that is selected; EACH: of a row, ``least`` has those of all."""
    if EACH:
        least = tl.load(least + row)
    return least.to(tl.int32)


@triton.jit
def _measure(
    table, programs, x, n, tiles, e, rest, words, bad,
    HELD: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, HAS_MEMORY: tl.constexpr, COPY: tl.constexpr,
    HISTOGRAM: tl.constexpr, BINS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """``rest = x + e``, a mark if it is not finite, and how many keys there are for each value of their upper bits.

    What is outside counts as 0, in the lowest bin: it changes nothing about what is selected.
    """
    task, tile, _at, x, start, n = row_at(table, programs, x, n, tiles, 0, MANY, EVEN)
    if MANY:
        e, rest = tensor_of(table, task, 1, EVEN), tensor_of(table, task, 2, EVEN)
        bad = bad + task
    i = tile * TILE + tl.arange(0, TILE)
    p = load_sum(x, e, start + i, i < n, HAS_MEMORY)
    mark_if(bad, magnitude(p) >= 0x7F800000)
    if COPY:
        tl.store(rest + start + i, p, i < n)
    if HISTOGRAM:
        count = tl.histogram(key_of_number(p, True) >> 20, BINS)
        tl.atomic_add(words + task * BINS + tl.arange(0, BINS), count, count > 0)


@triton.jit(do_not_specialize=["least"])
def _note(
    table, programs, x, n, tiles, slabs, counts, words, state, least,
    HELD: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr,
    TOPK: tl.constexpr, BINS: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Notes, tile by tile, the places of the numbers that may be selected: their count, and the first ``ROOM`` of them."""
    row, tile, this, x, start, n = row_at(table, programs, x, n, tiles, HELD, MANY, EVEN)
    lane = tl.arange(0, TILE)
    i = tile * TILE + lane
    key = key_of_number(load_number(x, start + i, i < n), TOPK)
    if TOPK:
        known = tl.load(state + 2 * row)
        bound = known << 20
        count = tl.histogram(tl.where(key >> 20 == known, (key >> 10) & 1023, 0), BINS)
        tl.atomic_add(words + row * BINS + tl.arange(0, BINS), count, count > 0)
    else:
        bound = bound_of(least, row, MANY)
    keep = ((key >= bound) & (i < n)).to(tl.int32)
    at = tl.cumsum(keep, 0) - keep
    tl.store(slabs + this * ROOM + at, lane.to(tl.int16), (keep > 0) & (at < ROOM))
    tl.store(counts + this, tl.sum(keep, 0))


@triton.jit
def noted(
    table, programs, x, n, tiles, slabs, counts, entire,
    HELD: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """What a tile has noted, or all of a full one, or of a row of which all is sent (``entire``): (its row, which of all tiles
    it is, places in the row ascending, where these are in x, whether they count, the numbers there).
    """
    row, tile, this, x, start, n = row_at(table, programs, x, n, tiles, HELD, MANY, EVEN)
    lane = tl.arange(0, TILE)
    count = tl.load(counts + this)
    fits = (count <= ROOM) & (entire == 0)
    short = tl.load(slabs + this * ROOM + lane, (lane < count) & fits, 0).to(tl.int32)
    i = tile * TILE + tl.where(fits, short, lane)
    inside = ((lane < count) | (fits == 0)) & (i < n)
    return row, this, i, x + start + i, inside, load_number(x, start + i, inside)


class Look(NamedTuple):
    """How kernels look at rows.

    given: where they find them. grid: of a program for each tile. rows, tiles: how many there are of all. spans: int64
    ``[rows, 2]``, of several tensors, the first tile of each row and how many it has. constants: as kernels have them.
    """

    given: tuple[Any, ...]
    grid: tuple[int, ...]
    rows: int
    tiles: int
    spans: Tensor | None
    constants: dict[str, Any]

    @staticmethod
    def at(x: Tensor) -> Look:
        """At rows ``[b, n]``."""
        (b, n), tiles = x.shape, block_count(x.shape[1], _TILE)
        constants = {"HELD": False, "MANY": False, "EVEN": False}
        return Look((None, None, x, n, tiles), (tiles, b), b, tiles * b, None, constants)

    @staticmethod
    def at_many(many: Many) -> Look:
        """At several tensors, or their rests where they have some."""
        tiles = many.tiles(_TILE)
        constants = {"HELD": many.rests is not None, "MANY": True, "EVEN": many.even}
        spans = many.spans(_TILE, lambda: many.counts(_TILE))
        return Look((many.table, tiles, many.like, None, None), (len(tiles),), len(many), len(tiles), spans, constants)

    def launch(self, kernel: Any, *args: Any, **constants: Any) -> None:
        """Launches a kernel for all tiles."""
        launch(kernel, self.grid, *self.given, *args, **self.constants, **constants, TILE=_TILE)

    def scan(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Of ``counts [planes, tiles]``: (how many come before in the row, ``[planes, rows]`` how many there are)."""
        if self.spans is not None:
            return scan(counts, self.spans)
        planes = len(counts)
        begins, total = scan(counts.view(planes * self.rows, -1))
        return begins, total.view(planes, self.rows)


def take_notes(
    look: Look, like: Tensor, words: Tensor | None, state: Tensor | None, least: int | Tensor
) -> tuple[Tensor, Tensor]:
    """``slabs`` int16 ``[tiles, 256]`` and ``counts`` int32 ``[1, tiles]`` of what may be selected, of all tiles."""
    slabs = torch.empty(look.tiles, ROOM, dtype=torch.int16, device=like.device)
    counts = torch.empty(1, look.tiles, dtype=torch.int32, device=like.device)
    look.launch(_note, slabs, counts, words, state, least, TOPK=words is not None, BINS=LOWER, ROOM=ROOM)
    return slabs, counts


def add_memory(rows: Tensor, memory: Tensor | None, rest: Tensor | None, upper: Tensor | None) -> tuple[Tensor, Flag]:
    """(``rows + memory``, in ``rest`` if there is one; whether it is finite). ``upper`` is the histogram, if one is wanted."""
    check_rows(rows=rows, memory=memory, rest=rest)
    bad = Marks(rows)
    if rest is None:
        rest = rows if memory is None else torch.empty_like(memory)
    copy = rest.data_ptr() != rows.data_ptr() or memory is not None
    Look.at(rows).launch(_measure, memory, rest, upper, bad.words, HAS_MEMORY=memory is not None, COPY=copy,
                          HISTOGRAM=upper is not None, BINS=UPPER)  # fmt: skip
    return rest, bad.unset()


def measure_many(look: Look, many: Many, upper: Tensor | None) -> Tensor:
    """Sets the rests of several tensors, where they have some, to their sums with the memories, and counts the first
    histogram, if one is wanted: ``[T]`` bool, which of them are finite.
    """
    marks, held, added = Marks(many.table, len(many)), many.rests is not None, many.memories is not None
    look.launch(_measure, None, None, upper, marks.words, HAS_MEMORY=added,
                COPY=held and (added or many.rests is not many.xs), HISTOGRAM=upper is not None, BINS=UPPER)  # fmt: skip
    return many.all_of(marks.words)
