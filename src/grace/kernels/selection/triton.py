"""Selection as Triton kernels: exact, and without asking the host, except for how many numbers reach a bound.

The k-th largest key is found from histograms of its upper 11 bits (the exponent and 3 bits more), the next 10 and the last 10.
How rows are looked at, and what is noted of them, is in ``selection.tiles``.

A position in the output is a count of what comes before: counts of tiles, a scan, then counts within the tile. None comes
from an atomic operation, whose order is not fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import READ, launch
from grace.flags.finite import Flag
from grace.kernels.many import Many
from grace.kernels.many.triton import tile_of
from grace.kernels.selection.tiles.triton import (
    LOWER,
    MOST,
    ROOM,
    UPPER,
    Look,
    add_memory,
    bound_of,
    kept_of,
    key_of_number,
    measure_many,
    noted,
    take_notes,
)
from grace.kernels.triton import nearest_bfloat16

_LARGEST = torch.finfo(torch.float32).max
_INFINITE = 0x7F800000


@triton.jit(do_not_specialize=["k"])
def _pick(words, state, kept, k, FIRST: tl.constexpr, MANY: tl.constexpr, BINS: tl.constexpr):
    """``state [b, 2]`` int32: the bits of the k-th largest key that are known, and which of those with them it is."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BINS)
    count = tl.load(words + row * BINS + lane)
    known = 0
    if FIRST:
        k, _first = kept_of(kept, row, k, MANY)
        wanted = k.to(tl.int32)
    else:
        known = tl.load(state + 2 * row)
        wanted = tl.load(state + 2 * row + 1)
    reach = tl.sum(count, 0) - tl.cumsum(count, 0) + count  # how many are in this bin or above
    digit = tl.sum((reach >= wanted).to(tl.int32), 0) - 1
    above = tl.sum(tl.where(lane > digit, count, 0), 0)
    tl.store(state + 2 * row, known * BINS + digit)
    tl.store(state + 2 * row + 1, wanted - above)


@triton.jit
def _refine(
    table, programs, x, n, tiles, slabs, counts, words, state,
    HELD: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, BINS: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """How many keys there are for each value of their lowest bits, of those with the upper bits of the k-th."""
    row, _this, _i, _at, inside, p = noted(table, programs, x, n, tiles, slabs, counts, 0, HELD, MANY, EVEN, ROOM, TILE)
    key = key_of_number(p, True)
    count = tl.histogram(tl.where(inside & (key >> 10 == tl.load(state + 2 * row)), key & 1023, 0), BINS)
    tl.atomic_add(words + row * BINS + tl.arange(0, BINS), count, count > 0)


@triton.jit
def _tally(
    table, programs, x, n, tiles, slabs, counts, state, both, plane,
    HELD: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """``both [2, plane]``: how many keys of each of all tiles are above the k-th largest, and how many are equal to it."""
    row, this, _i, _at, inside, p = noted(table, programs, x, n, tiles, slabs, counts, 0, HELD, MANY, EVEN, ROOM, TILE)
    key = key_of_number(p, True)
    kth = tl.load(state + 2 * row)
    tl.store(both + this, tl.sum((inside & (key > kth)).to(tl.int32), 0))
    tl.store(both + plane + this, tl.sum((inside & (key == kth)).to(tl.int32), 0))


@triton.jit(do_not_specialize=["least", "k"])
def _emit(
    table, programs, x, n, tiles, slabs, counts, state, begins, plane, kept, index, sent, k, least,
    HELD: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, TOPK: tl.constexpr, KEEP_REST: tl.constexpr,
    NARROW: tl.constexpr, LISTED: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Writes places and what is sent for them; x keeps the rest. Of keys equal to the k-th the first ones are taken.

    LISTED: ``kept`` is a table of lists (:class:`grace.kernels.counted.triton.Lists`), and of a row that is sent without one
    everything is.
    """
    entire = tl.program_id(0) < 0
    if LISTED:
        task, tile = tile_of(programs)
        entire = tl.load(kept + 8 * task + 2) == 3
        first = tl.load(kept + 8 * task + 1)
    row, this, i, where, inside, p = noted(
        table, programs, x, n, tiles, slabs, counts, entire.to(tl.int32), HELD, MANY, EVEN, ROOM, TILE
    )
    key = key_of_number(p, TOPK)
    begin = tl.load(begins + this)
    if TOPK:
        kth = tl.load(state + 2 * row)
        wanted = tl.load(state + 2 * row + 1)
        equal = (inside & (key == kth)).to(tl.int32)
        equals = tl.load(begins + plane + this)
        keep = inside & ((key > kth) | ((equal > 0) & (equals + tl.cumsum(equal, 0) <= wanted)))
        begin += tl.minimum(equals, wanted)
    else:
        keep = inside & (key >= bound_of(least, row, LISTED))
    if LISTED:
        keep = keep | (inside & entire)
        begin = tl.where(entire, tile * TILE, begin)
    else:
        _k, first = kept_of(kept, row, k, MANY)
    ones = keep.to(tl.int32)
    at = first + begin + tl.cumsum(ones, 0) - ones
    value = p
    if NARROW:
        value = nearest_bfloat16(p)
    tl.store(index + at, i, keep & (entire == 0))
    tl.store(sent + at, value, keep)
    if KEEP_REST:
        tl.store(where, p - value, keep)


def select_topk(rows: Tensor, k: int) -> Any:
    b, n = rows.shape
    if rows.dtype is not torch.float32 or n > MOST or k == n or b == 0:
        return NotImplemented
    return take_topk(rows.contiguous(), k)[0]


def select_at_least(row: Tensor, bound: float, *, strict: bool = False) -> Any:
    if row.dtype is not torch.float32 or row.numel() > MOST:
        return NotImplemented
    return _take_above(row.contiguous()[None], _least_key(bound, strict), None, None, False)[0]


def take_topk(
    rows: Tensor, k: int, memory: Tensor | None = None, rest: Tensor | None = None, *, narrow: bool = False
) -> Any:
    if not _fits(rows, memory):
        return NotImplemented
    (b, _n), words = rows.shape, new_words(rows, len(rows))
    index, sent = rows.new_empty(b, k, dtype=torch.int64), rows.new_empty(b, k, dtype=torch.float32)
    p, finite = add_memory(rows, memory, rest, words[0])
    _take_largest(Look.at(p), words, None, k, index, sent, rest is not None, narrow)
    return index, sent, finite


def take_topk_many(index: Tensor, sent: Tensor, many: Many, kept: tuple[int, ...], *, narrow: bool = False) -> Any:
    if max(many.sizes) > MOST:
        return NotImplemented
    look, words = Look.at_many(many), new_words(index, len(many))
    finite = measure_many(look, many, words[0])
    _take_largest(look, words, many.kept(kept), None, index, sent, many.rests is not None, narrow)
    return finite


def add_memories_many(storage: Tensor, many: Many) -> Tensor:
    return measure_many(Look.at_many(many), many, None)


class Reaching(NamedTuple):
    """What reaches the bounds of several rows, noted.

    total: int32 ``[rows]``, how many numbers there are. least: int32 ``[rows]``, the bounds' keys.
    """

    look: Look
    notes: tuple[Tensor, Tensor]
    least: Tensor
    begins: Tensor
    total: Tensor

    @staticmethod
    def of(look: Look, bounds: Tensor, strict: bool) -> Reaching:
        """What reaches (strict: exceeds) ``bounds [rows]`` float64."""
        limits = bounds.clamp_max(_LARGEST) if strict else bounds
        least = torch.where(bounds >= 0, limits.float().view(torch.int32) + int(strict), 0)
        notes = take_notes(look, bounds, None, None, least)
        begins, total = look.scan(notes[1])
        return Reaching(look, notes, least, begins, total[0])

    def emit(self, lists: Tensor, index: Tensor, sent: Tensor, keep_rest: bool, narrow: bool) -> None:
        """Writes places and what is sent for them, ``[K]`` each, where ``lists [rows, 8]`` say."""
        self.look.launch(_emit, *self.notes, None, self.begins, None, lists, index, sent, None, self.least,
                         TOPK=False, KEEP_REST=keep_rest, NARROW=narrow, LISTED=True, ROOM=ROOM)  # fmt: skip


class Largest(NamedTuple):
    """The k largest numbers of several rows, noted. total: int32 ``[rows]``, the k of each."""

    look: Look
    notes: tuple[Tensor, Tensor]
    state: Tensor
    begins: Tensor
    total: Tensor

    @staticmethod
    def of(look: Look, many: Many, total: Tensor) -> Largest:
        """The ``total [rows]`` int32 largest, where there are no memories to add."""
        words = new_words(total, len(many))
        measure_many(look, many, words[0])
        kept = torch.stack((total, torch.zeros_like(total)), dim=1).long()
        notes, state = find_kth(look, words, kept, None)
        return Largest(look, notes, state, _count_largest(look, notes, state), total)

    def emit(self, lists: Tensor, index: Tensor, sent: Tensor, keep_rest: bool, narrow: bool) -> None:
        """As :meth:`Reaching.emit`, ``[K]`` each."""
        self.look.launch(_emit, *self.notes, self.state, self.begins, self.look.tiles, lists, index, sent, None, 0,
                         TOPK=True, KEEP_REST=keep_rest, NARROW=narrow, LISTED=True, ROOM=ROOM)  # fmt: skip


def take_at_least(
    row: Tensor,
    bound: float,
    memory: Tensor | None = None,
    rest: Tensor | None = None,
    *,
    strict: bool = False,
    narrow: bool = False,
) -> Any:
    if not _fits(row, memory):
        return NotImplemented
    key = _least_key(min(bound, _LARGEST) if strict else bound, strict)
    e, left = None if memory is None else memory[None], None if rest is None else rest[None]
    return _take_above(row[None], key, e, left, narrow)


def _fits(rows: Tensor, memory: Tensor | None) -> bool:
    """Whether the kernels take them."""
    return rows.dtype in (READ if memory is not None else (torch.float32,)) and rows.shape[-1] <= MOST


def _take_above(
    rows: Tensor, least: int, memory: Tensor | None, rest: Tensor | None, narrow: bool
) -> tuple[Tensor, Tensor, Flag]:
    """All of ``rows [1, n] + memory`` whose key is at least ``least``; the host is told how many there are."""
    p, finite = add_memory(rows, memory, rest, None)
    look = Look.at(p)
    notes = take_notes(look, p, None, None, least)
    begins, total = look.scan(notes[1])
    k = int(total)
    index, sent = p.new_empty(k, dtype=torch.int64), p.new_empty(k)
    if k:
        look.launch(_emit, *notes, None, begins, look.tiles, None, index, sent, k, least,
                    TOPK=False, KEEP_REST=rest is not None, NARROW=narrow, LISTED=False, ROOM=ROOM)  # fmt: skip
    return index, sent, finite


def new_words(like: Tensor, rows: int) -> Sequence[Tensor]:
    """Bins of the three histograms of so many rows, int32, zero."""
    sizes = [rows * UPPER, rows * LOWER, rows * LOWER]
    return torch.zeros(sum(sizes), dtype=torch.int32, device=like.device).split(sizes)


def find_kth(
    look: Look, words: Sequence[Tensor], kept: Tensor | None, k: int | None
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Finds the k-th largest key of each row, of which the first histogram is there; ``kept`` is None, or says k for each.

    Returns:
        What may be among the k largest, noted; and int32 ``[rows, 2]``: that key, and how many of those that equal it are.
    """
    upper, middle, lower = words
    many, state = look.constants["MANY"], upper.new_empty(look.rows, 2)
    launch(_pick, (look.rows,), upper, state, kept, k, FIRST=True, MANY=many, BINS=UPPER)
    notes = take_notes(look, upper, middle, state, 0)
    launch(_pick, (look.rows,), middle, state, None, None, FIRST=False, MANY=many, BINS=LOWER)
    look.launch(_refine, *notes, lower, state, BINS=LOWER, ROOM=ROOM)
    launch(_pick, (look.rows,), lower, state, None, None, FIRST=False, MANY=many, BINS=LOWER)
    return notes, state


def _count_largest(look: Look, notes: tuple[Tensor, Tensor], state: Tensor) -> Tensor:
    """``[2, tiles]``: how many larger keys than the k-th come before each tile in its row, and how many equal ones."""
    both = state.new_empty(2, look.tiles)
    look.launch(_tally, *notes, state, both, look.tiles, ROOM=ROOM)
    return look.scan(both)[0]


def _take_largest(
    look: Look, words: Sequence[Tensor], kept: Tensor | None, k: int | None, index: Tensor, sent: Tensor,
    keep_rest: bool, narrow: bool,
) -> None:  # fmt: skip
    """Writes the k largest of each row, as :func:`find_kth` has them, into ``index`` and ``sent``."""
    notes, state = find_kth(look, words, kept, k)
    begins = _count_largest(look, notes, state)
    look.launch(_emit, *notes, state, begins, look.tiles, kept, index, sent, k, 0,
                TOPK=True, KEEP_REST=keep_rest, NARROW=narrow, LISTED=False, ROOM=ROOM)  # fmt: skip


def _least_key(bound: float, strict: bool) -> int:
    """The least key that is selected."""
    if not bound >= 0:
        return 0
    return int(torch.tensor(bound, dtype=torch.float32).view(torch.int32)) + strict
