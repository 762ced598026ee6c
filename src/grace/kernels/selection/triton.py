"""Selection as Triton kernels: exact, and without asking the host, except for how many numbers reach a bound.

The key of a number is its magnitude's 31 bits: an integer in the order of magnitudes. The k-th largest key is found from
histograms of its upper 11 bits (the exponent and 3 bits more), the next 10 and the last 10. Only the first one looks at all
numbers. What may be selected after it is noted: in tiles of 4,096 numbers, each with room for 256 places; a tile with more is
read whole again.

A position in the output is a count of what comes before: counts of tiles, a scan, then counts within the tile. None comes
from an atomic operation, whose order is not fixed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import READ, Marks, check_rows, launch
from grace.flags.finite import Flag
from grace.kernels.blocks import block_count
from grace.kernels.triton import load_sum, magnitude, mark_if, nearest_bfloat16, scan

_TILE, _ROOM = 4096, 256  # numbers of a tile, and how many of them are noted
_UPPER, _LOWER = 2048, 1024  # bins of the first histogram, and of the other two
_MOST = (1 << 31) - 1 - _TILE
_LARGEST = torch.finfo(torch.float32).max
_INFINITE = 0x7F800000


@triton.jit
def _key(p, CLAMP: tl.constexpr):
    """The magnitudes' bits; with ``CLAMP`` a NaN counts as infinite."""
    key = magnitude(p)
    if CLAMP:
        key = tl.minimum(key, 0x7F800000)
    return key


@triton.jit
def _measure(
    x, e, rest, words, bad, n,
    HAS_MEMORY: tl.constexpr, COPY: tl.constexpr, HISTOGRAM: tl.constexpr, BINS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """``rest = x + e``, a mark if it is not finite, and how many keys there are for each value of their upper bits.

    What is outside counts as 0, in the lowest bin: it changes nothing about what is selected.
    """
    row = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    p = load_sum(x, e, row * n + i, i < n, HAS_MEMORY)
    mark_if(bad, magnitude(p) >= 0x7F800000)
    if COPY:
        tl.store(rest + row * n + i, p, i < n)
    if HISTOGRAM:
        count = tl.histogram(_key(p, True) >> 20, BINS)
        tl.atomic_add(words + row * BINS + tl.arange(0, BINS), count, count > 0)


@triton.jit(do_not_specialize=["k"])
def _pick(words, state, k, FIRST: tl.constexpr, BINS: tl.constexpr):
    """``state [b, 2]`` int32: the bits of the k-th largest key that are known, and which of those with them it is."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BINS)
    count = tl.load(words + row * BINS + lane)
    known = 0
    wanted = k.to(tl.int32)
    if FIRST == 0:
        known = tl.load(state + 2 * row)
        wanted = tl.load(state + 2 * row + 1)
    reach = tl.sum(count, 0) - tl.cumsum(count, 0) + count  # how many are in this bin or above
    digit = tl.sum((reach >= wanted).to(tl.int32), 0) - 1
    above = tl.sum(tl.where(lane > digit, count, 0), 0)
    tl.store(state + 2 * row, known * BINS + digit)
    tl.store(state + 2 * row + 1, wanted - above)


@triton.jit(do_not_specialize=["least"])
def _note(
    x, slabs, counts, words, state, n, tiles, least,
    TOPK: tl.constexpr, BINS: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Notes, tile by tile, the places of the numbers that may be selected: their count, and the first ``ROOM`` of them."""
    row = tl.program_id(1).to(tl.int64)
    tile = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, TILE)
    i = tile * TILE + lane
    key = _key(tl.load(x + row * n + i, i < n, 0.0), TOPK)
    bound = least.to(tl.int32)
    if TOPK:
        known = tl.load(state + 2 * row)
        bound = known << 20
        count = tl.histogram(tl.where(key >> 20 == known, (key >> 10) & 1023, 0), BINS)
        tl.atomic_add(words + row * BINS + tl.arange(0, BINS), count, count > 0)
    keep = ((key >= bound) & (i < n)).to(tl.int32)
    at = tl.cumsum(keep, 0) - keep
    slab = slabs + (row * tiles + tile) * ROOM
    tl.store(slab + at, lane.to(tl.int16), (keep > 0) & (at < ROOM))
    tl.store(counts + row * tiles + tile, tl.sum(keep, 0))


@triton.jit
def _noted(x, slabs, counts, row, tile, tiles, n, ROOM: tl.constexpr, TILE: tl.constexpr):
    """(places in the row ascending, whether they count, the numbers there): what a tile has noted, or all of a full one."""
    lane = tl.arange(0, TILE)
    count = tl.load(counts + row * tiles + tile)
    fits = count <= ROOM
    short = tl.load(slabs + (row * tiles + tile) * ROOM + lane, (lane < count) & fits, 0).to(tl.int32)
    i = tile * TILE + tl.where(fits, short, lane)
    inside = ((lane < count) | (count > ROOM)) & (i < n)
    return i, inside, tl.load(x + row * n + i, inside, 0.0)


@triton.jit
def _refine(x, slabs, counts, words, state, n, tiles, BINS: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr):
    """How many keys there are for each value of their lowest bits, of those with the upper bits of the k-th."""
    row = tl.program_id(1).to(tl.int64)
    tile = tl.program_id(0).to(tl.int64)
    _i, inside, p = _noted(x, slabs, counts, row, tile, tiles, n, ROOM, TILE)
    key = _key(p, True)
    count = tl.histogram(tl.where(inside & (key >> 10 == tl.load(state + 2 * row)), key & 1023, 0), BINS)
    tl.atomic_add(words + row * BINS + tl.arange(0, BINS), count, count > 0)


@triton.jit
def _tally(x, slabs, counts, state, both, n, tiles, ROOM: tl.constexpr, TILE: tl.constexpr):
    """``both [b, 2, tiles]``: how many keys of each tile are above the k-th largest, and how many are equal to it."""
    row = tl.program_id(1).to(tl.int64)
    tile = tl.program_id(0).to(tl.int64)
    _i, inside, p = _noted(x, slabs, counts, row, tile, tiles, n, ROOM, TILE)
    key = _key(p, True)
    kth = tl.load(state + 2 * row)
    tl.store(both + 2 * row * tiles + tile, tl.sum((inside & (key > kth)).to(tl.int32), 0))
    tl.store(both + (2 * row + 1) * tiles + tile, tl.sum((inside & (key == kth)).to(tl.int32), 0))


@triton.jit(do_not_specialize=["least", "k"])
def _emit(
    x, slabs, counts, state, begins, index, sent, n, tiles, k, least,
    TOPK: tl.constexpr, KEEP_REST: tl.constexpr, NARROW: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Writes places and what is sent for them; x keeps the rest. Of keys equal to the k-th the first ones are taken."""
    row = tl.program_id(1).to(tl.int64)
    tile = tl.program_id(0).to(tl.int64)
    i, inside, p = _noted(x, slabs, counts, row, tile, tiles, n, ROOM, TILE)
    key = _key(p, TOPK)
    if TOPK:
        kth = tl.load(state + 2 * row)
        wanted = tl.load(state + 2 * row + 1)
        equal = (inside & (key == kth)).to(tl.int32)
        equals = tl.load(begins + (2 * row + 1) * tiles + tile)
        keep = inside & ((key > kth) | ((equal > 0) & (equals + tl.cumsum(equal, 0) <= wanted)))
        begin = tl.load(begins + 2 * row * tiles + tile) + tl.minimum(equals, wanted)
    else:
        keep = inside & (key >= least.to(tl.int32))
        begin = tl.load(begins + row * tiles + tile)
    one = keep.to(tl.int32)
    at = row * k + begin + tl.cumsum(one, 0) - one
    value = p
    if NARROW:
        value = nearest_bfloat16(p)
    tl.store(index + at, i, keep)
    tl.store(sent + at, value, keep)
    if KEEP_REST:
        tl.store(x + row * n + i, p - value, keep)


class _Notes(NamedTuple):
    """``slabs`` int16 ``[b, tiles, 256]`` and ``counts`` int32 ``[b, tiles]`` of what may be selected from ``x [b, n]``."""

    x: Tensor
    slabs: Tensor
    counts: Tensor

    @property
    def tiles(self) -> int:
        return self.counts.shape[1]

    @property
    def grid(self) -> tuple[int, int]:
        return self.tiles, self.counts.shape[0]


def select_topk(rows: Tensor, k: int) -> Any:
    b, n = rows.shape
    if rows.dtype is not torch.float32 or n > _MOST or k == n or b == 0:
        return NotImplemented
    return take_topk(rows.contiguous(), k)[0]


def select_at_least(row: Tensor, bound: float, *, strict: bool = False) -> Any:
    if row.dtype is not torch.float32 or row.numel() > _MOST:
        return NotImplemented
    return _take_above(row.contiguous()[None], _least_key(bound, strict), None, None, False)[0]


def take_topk(
    rows: Tensor, k: int, memory: Tensor | None = None, rest: Tensor | None = None, *, narrow: bool = False
) -> Any:
    if not _fits(rows, memory):
        return NotImplemented
    b, n = rows.shape
    upper, middle, lower = rows.new_zeros(b * (_UPPER + 2 * _LOWER), dtype=torch.int32).split(
        [b * _UPPER, b * _LOWER, b * _LOWER]
    )
    state = rows.new_empty(b, 2, dtype=torch.int32)
    p, finite = _add_memory(rows, memory, rest, upper)
    launch(_pick, (b,), upper, state, k, FIRST=True, BINS=_UPPER)
    notes = _take_notes(p, middle, state, 0, True)
    launch(_pick, (b,), middle, state, k, FIRST=False, BINS=_LOWER)
    launch(_refine, notes.grid, *notes, lower, state, n, notes.tiles, BINS=_LOWER, ROOM=_ROOM, TILE=_TILE)
    launch(_pick, (b,), lower, state, k, FIRST=False, BINS=_LOWER)
    both = rows.new_empty(b, 2, notes.tiles, dtype=torch.int32)
    launch(_tally, notes.grid, *notes, state, both, n, notes.tiles, ROOM=_ROOM, TILE=_TILE)
    begins, _ = scan(both.view(2 * b, -1))
    index, sent = rows.new_empty(b, k, dtype=torch.int64), state.new_empty(b, k, dtype=torch.float32)
    launch(_emit, notes.grid, *notes, state, begins, index, sent, n, notes.tiles, k, 0,
           TOPK=True, KEEP_REST=rest is not None, NARROW=narrow, ROOM=_ROOM, TILE=_TILE)  # fmt: skip
    return index, sent, finite


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
    return rows.dtype in (READ if memory is not None else (torch.float32,)) and rows.shape[-1] <= _MOST


def _take_above(
    rows: Tensor, least: int, memory: Tensor | None, rest: Tensor | None, narrow: bool
) -> tuple[Tensor, Tensor, Flag]:
    """All of ``rows [1, n] + memory`` whose key is at least ``least``; the host is told how many there are."""
    n = rows.shape[1]
    p, finite = _add_memory(rows, memory, rest, None)
    notes = _take_notes(p, None, None, least, False)
    begins, total = scan(notes.counts)
    k = int(total)
    index, sent = p.new_empty(k, dtype=torch.int64), p.new_empty(k)
    launch(_emit, notes.grid if k else (0,), *notes, None, begins, index, sent, n, notes.tiles, k, least,
           TOPK=False, KEEP_REST=rest is not None, NARROW=narrow, ROOM=_ROOM, TILE=_TILE)  # fmt: skip
    return index, sent, finite


def _add_memory(rows: Tensor, memory: Tensor | None, rest: Tensor | None, upper: Tensor | None) -> tuple[Tensor, Flag]:
    """(``rows + memory``, in ``rest`` if there is one; whether it is finite). ``upper`` is the histogram, if one is wanted."""
    check_rows(rows=rows, memory=memory, rest=rest)
    (b, n), bad = rows.shape, Marks(rows)
    if rest is None:
        rest = rows if memory is None else torch.empty_like(memory)
    launch(_measure, (block_count(n, _TILE), b), rows, memory, rest, upper, bad.words, n,
           HAS_MEMORY=memory is not None, COPY=rest.data_ptr() != rows.data_ptr() or memory is not None,
           HISTOGRAM=upper is not None, BINS=_UPPER, TILE=_TILE)  # fmt: skip
    return rest, bad.unset()


def _take_notes(p: Tensor, words: Tensor | None, state: Tensor | None, least: int, topk: bool) -> _Notes:
    b, n = p.shape
    tiles = block_count(n, _TILE)
    slabs = p.new_empty(b, tiles, _ROOM, dtype=torch.int16)
    notes = _Notes(p, slabs, p.new_empty(b, tiles, dtype=torch.int32))
    launch(_note, notes.grid, *notes, words, state, n, tiles, least, TOPK=topk, BINS=_LOWER, ROOM=_ROOM, TILE=_TILE)
    return notes


def _least_key(bound: float, strict: bool) -> int:
    """The least key that is selected."""
    if not bound >= 0:
        return 0
    return int(torch.tensor(bound, dtype=torch.float32).view(torch.int32)) + strict
