"""Selection as Triton kernels: exact, and without asking the host, except for how many numbers reach a bound.

The key of a number is its magnitude's 31 bits: an integer in the order of magnitudes. The k-th largest key is found from
histograms of its upper 11 bits (the exponent and 3 bits more), the next 10 and the last 10. Only the first one looks at all
numbers. What may be selected after it is noted: in tiles of 4,096 numbers, each with room for 256 places; a tile with more is
read whole again.

A position in the output is a count of what comes before: counts of tiles, a scan, then counts within the tile. None comes
from an atomic operation, whose order is not fixed.

Kernels take rows ``[b, n]``, or with MANY those of several tensors. HELD: their sums with the memory are in the rests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import READ, Marks, check_rows, launch
from grace.flags.finite import Flag
from grace.kernels.blocks import block_count
from grace.kernels.many import Many
from grace.kernels.many.triton import numbers_of, tensor_of, tile_of, wire_of
from grace.kernels.triton import load_number, load_sum, magnitude, mark_if, nearest_bfloat16, scan

_TILE, _ROOM = 4096, 256  # numbers of a tile, and how many of them are noted
_UPPER, _LOWER = 2048, 1024  # bins of the first histogram, and of the other two
MOST = (1 << 31) - 1 - _TILE
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
def _row_at(table, programs, x, n, tiles, HELD: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr):
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
def _kept_of(kept, task, k, MANY: tl.constexpr):
    """(how many numbers of a row are selected, where they are in the output)"""
    if MANY:
        k = tl.load(kept + 2 * task)
        first = tl.load(kept + 2 * task + 1)
    else:
        first = task * k
    return k, first


@triton.jit
def _bound_of(least, row, EACH: tl.constexpr):
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
    task, tile, _at, x, start, n = _row_at(table, programs, x, n, tiles, 0, MANY, EVEN)
    if MANY:
        e, rest = tensor_of(table, task, 1, EVEN), tensor_of(table, task, 2, EVEN)
        bad = bad + task
    i = tile * TILE + tl.arange(0, TILE)
    p = load_sum(x, e, start + i, i < n, HAS_MEMORY)
    mark_if(bad, magnitude(p) >= 0x7F800000)
    if COPY:
        tl.store(rest + start + i, p, i < n)
    if HISTOGRAM:
        count = tl.histogram(_key(p, True) >> 20, BINS)
        tl.atomic_add(words + task * BINS + tl.arange(0, BINS), count, count > 0)


@triton.jit(do_not_specialize=["k"])
def _pick(words, state, kept, k, FIRST: tl.constexpr, MANY: tl.constexpr, BINS: tl.constexpr):
    """``state [b, 2]`` int32: the bits of the k-th largest key that are known, and which of those with them it is."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BINS)
    count = tl.load(words + row * BINS + lane)
    known = 0
    if FIRST:
        k, _first = _kept_of(kept, row, k, MANY)
        wanted = k.to(tl.int32)
    else:
        known = tl.load(state + 2 * row)
        wanted = tl.load(state + 2 * row + 1)
    reach = tl.sum(count, 0) - tl.cumsum(count, 0) + count  # how many are in this bin or above
    digit = tl.sum((reach >= wanted).to(tl.int32), 0) - 1
    above = tl.sum(tl.where(lane > digit, count, 0), 0)
    tl.store(state + 2 * row, known * BINS + digit)
    tl.store(state + 2 * row + 1, wanted - above)


@triton.jit(do_not_specialize=["least"])
def _note(
    table, programs, x, n, tiles, slabs, counts, words, state, least,
    HELD: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr,
    TOPK: tl.constexpr, BINS: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Notes, tile by tile, the places of the numbers that may be selected: their count, and the first ``ROOM`` of them."""
    row, tile, this, x, start, n = _row_at(table, programs, x, n, tiles, HELD, MANY, EVEN)
    lane = tl.arange(0, TILE)
    i = tile * TILE + lane
    key = _key(load_number(x, start + i, i < n), TOPK)
    if TOPK:
        known = tl.load(state + 2 * row)
        bound = known << 20
        count = tl.histogram(tl.where(key >> 20 == known, (key >> 10) & 1023, 0), BINS)
        tl.atomic_add(words + row * BINS + tl.arange(0, BINS), count, count > 0)
    else:
        bound = _bound_of(least, row, MANY)
    keep = ((key >= bound) & (i < n)).to(tl.int32)
    at = tl.cumsum(keep, 0) - keep
    tl.store(slabs + this * ROOM + at, lane.to(tl.int16), (keep > 0) & (at < ROOM))
    tl.store(counts + this, tl.sum(keep, 0))


@triton.jit
def _noted(
    table, programs, x, n, tiles, slabs, counts, entire,
    HELD: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """What a tile has noted, or all of a full one, or of a row of which all is sent (``entire``): (its row, which of all tiles
    it is, places in the row ascending, where these are in x, whether they count, the numbers there).
    """
    row, tile, this, x, start, n = _row_at(table, programs, x, n, tiles, HELD, MANY, EVEN)
    lane = tl.arange(0, TILE)
    count = tl.load(counts + this)
    fits = (count <= ROOM) & (entire == 0)
    short = tl.load(slabs + this * ROOM + lane, (lane < count) & fits, 0).to(tl.int32)
    i = tile * TILE + tl.where(fits, short, lane)
    inside = ((lane < count) | (fits == 0)) & (i < n)
    return row, this, i, x + start + i, inside, load_number(x, start + i, inside)


@triton.jit
def _refine(
    table, programs, x, n, tiles, slabs, counts, words, state,
    HELD: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, BINS: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """How many keys there are for each value of their lowest bits, of those with the upper bits of the k-th."""
    row, _this, _i, _at, inside, p = _noted(
        table, programs, x, n, tiles, slabs, counts, 0, HELD, MANY, EVEN, ROOM, TILE
    )
    key = _key(p, True)
    count = tl.histogram(tl.where(inside & (key >> 10 == tl.load(state + 2 * row)), key & 1023, 0), BINS)
    tl.atomic_add(words + row * BINS + tl.arange(0, BINS), count, count > 0)


@triton.jit
def _tally(
    table, programs, x, n, tiles, slabs, counts, state, both, plane,
    HELD: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """``both [2, plane]``: how many keys of each of all tiles are above the k-th largest, and how many are equal to it."""
    row, this, _i, _at, inside, p = _noted(table, programs, x, n, tiles, slabs, counts, 0, HELD, MANY, EVEN, ROOM, TILE)
    key = _key(p, True)
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
    row, this, i, where, inside, p = _noted(
        table, programs, x, n, tiles, slabs, counts, entire.to(tl.int32), HELD, MANY, EVEN, ROOM, TILE
    )
    key = _key(p, TOPK)
    begin = tl.load(begins + this)
    if TOPK:
        kth = tl.load(state + 2 * row)
        wanted = tl.load(state + 2 * row + 1)
        equal = (inside & (key == kth)).to(tl.int32)
        equals = tl.load(begins + plane + this)
        keep = inside & ((key > kth) | ((equal > 0) & (equals + tl.cumsum(equal, 0) <= wanted)))
        begin += tl.minimum(equals, wanted)
    else:
        keep = inside & (key >= _bound_of(least, row, LISTED))
    if LISTED:
        keep = keep | (inside & entire)
        begin = tl.where(entire, tile * TILE, begin)
    else:
        _k, first = _kept_of(kept, row, k, MANY)
    ones = keep.to(tl.int32)
    at = first + begin + tl.cumsum(ones, 0) - ones
    value = p
    if NARROW:
        value = nearest_bfloat16(p)
    tl.store(index + at, i, keep & (entire == 0))
    tl.store(sent + at, value, keep)
    if KEEP_REST:
        tl.store(where, p - value, keep)


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
    p, finite = _add_memory(rows, memory, rest, words[0])
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


def measure_many(look: Look, many: Many, upper: Tensor | None) -> Tensor:
    """Sets the rests of several tensors, where they have some, to their sums with the memories, and counts the first
    histogram, if one is wanted: ``[T]`` bool, which of them are finite.
    """
    marks, held, added = Marks(many.table, len(many)), many.rests is not None, many.memories is not None
    look.launch(_measure, None, None, upper, marks.words, HAS_MEMORY=added,
                COPY=held and (added or many.rests is not many.xs), HISTOGRAM=upper is not None, BINS=_UPPER)  # fmt: skip
    return many.all_of(marks.words)


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
                         TOPK=False, KEEP_REST=keep_rest, NARROW=narrow, LISTED=True, ROOM=_ROOM)  # fmt: skip


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
                         TOPK=True, KEEP_REST=keep_rest, NARROW=narrow, LISTED=True, ROOM=_ROOM)  # fmt: skip


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
    p, finite = _add_memory(rows, memory, rest, None)
    look = Look.at(p)
    notes = take_notes(look, p, None, None, least)
    begins, total = look.scan(notes[1])
    k = int(total)
    index, sent = p.new_empty(k, dtype=torch.int64), p.new_empty(k)
    if k:
        look.launch(_emit, *notes, None, begins, look.tiles, None, index, sent, k, least,
                    TOPK=False, KEEP_REST=rest is not None, NARROW=narrow, LISTED=False, ROOM=_ROOM)  # fmt: skip
    return index, sent, finite


def _add_memory(rows: Tensor, memory: Tensor | None, rest: Tensor | None, upper: Tensor | None) -> tuple[Tensor, Flag]:
    """(``rows + memory``, in ``rest`` if there is one; whether it is finite). ``upper`` is the histogram, if one is wanted."""
    check_rows(rows=rows, memory=memory, rest=rest)
    bad = Marks(rows)
    if rest is None:
        rest = rows if memory is None else torch.empty_like(memory)
    copy = rest.data_ptr() != rows.data_ptr() or memory is not None
    Look.at(rows).launch(_measure, memory, rest, upper, bad.words, HAS_MEMORY=memory is not None, COPY=copy,
                          HISTOGRAM=upper is not None, BINS=_UPPER)  # fmt: skip
    return rest, bad.unset()


def new_words(like: Tensor, rows: int) -> Sequence[Tensor]:
    """Bins of the three histograms of so many rows, int32, zero."""
    sizes = [rows * _UPPER, rows * _LOWER, rows * _LOWER]
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
    launch(_pick, (look.rows,), upper, state, kept, k, FIRST=True, MANY=many, BINS=_UPPER)
    notes = take_notes(look, upper, middle, state, 0)
    launch(_pick, (look.rows,), middle, state, None, None, FIRST=False, MANY=many, BINS=_LOWER)
    look.launch(_refine, *notes, lower, state, BINS=_LOWER, ROOM=_ROOM)
    launch(_pick, (look.rows,), lower, state, None, None, FIRST=False, MANY=many, BINS=_LOWER)
    return notes, state


def _count_largest(look: Look, notes: tuple[Tensor, Tensor], state: Tensor) -> Tensor:
    """``[2, tiles]``: how many larger keys than the k-th come before each tile in its row, and how many equal ones."""
    both = state.new_empty(2, look.tiles)
    look.launch(_tally, *notes, state, both, look.tiles, ROOM=_ROOM)
    return look.scan(both)[0]


def _take_largest(
    look: Look, words: Sequence[Tensor], kept: Tensor | None, k: int | None, index: Tensor, sent: Tensor,
    keep_rest: bool, narrow: bool,
) -> None:  # fmt: skip
    """Writes the k largest of each row, as :func:`find_kth` has them, into ``index`` and ``sent``."""
    notes, state = find_kth(look, words, kept, k)
    begins = _count_largest(look, notes, state)
    look.launch(_emit, *notes, state, begins, look.tiles, kept, index, sent, k, 0,
                TOPK=True, KEEP_REST=keep_rest, NARROW=narrow, LISTED=False, ROOM=_ROOM)  # fmt: skip


def take_notes(
    look: Look, like: Tensor, words: Tensor | None, state: Tensor | None, least: int | Tensor
) -> tuple[Tensor, Tensor]:
    """``slabs`` int16 ``[tiles, 256]`` and ``counts`` int32 ``[1, tiles]`` of what may be selected, of all tiles."""
    slabs = torch.empty(look.tiles, _ROOM, dtype=torch.int16, device=like.device)
    counts = torch.empty(1, look.tiles, dtype=torch.int32, device=like.device)
    look.launch(_note, slabs, counts, words, state, least, TOPK=words is not None, BINS=_LOWER, ROOM=_ROOM)
    return slabs, counts


def _least_key(bound: float, strict: bool) -> int:
    """The least key that is selected."""
    if not bound >= 0:
        return 0
    return int(torch.tensor(bound, dtype=torch.float32).view(torch.int32)) + strict
