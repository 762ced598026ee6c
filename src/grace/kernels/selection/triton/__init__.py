"""Selection as Triton kernels: exact, and without asking the host, except for how many numbers reach a bound.

The k-th largest key is found from histograms of its upper 11 bits (the exponent and 3 bits more), the next 10 and the last 10,
of what is noted. How rows are looked at, and what is noted of them, is in ``selection.tiles``.

A position in the output is a count of what comes before: counts of tiles, a scan, then counts within the tile. None comes
from an atomic operation, whose order is not fixed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import READ, launch
from grace.flags.finite import Flag
from grace.kernels.selection.triton.candidates import (
    COLUMNS,
    MOST,
    Look,
    Notes,
    add_memory,
    bound_of,
    kept_of,
    key_of_number,
    measure_many,
    noted,
    on_side,
    row_of,
    tiles_at,
)
from grace.kernels.sparse_codes import Payload
from grace.kernels.sparse_codes.triton import code_of_number, coding, number_of_code
from grace.kernels.tensor_list import TensorList
from grace.kernels.triton import nearest_bfloat16

_LARGEST = torch.finfo(torch.float32).max
_BINS = (0, 2048, 1024, 1024)  # of the histogram of each round, from 1 on


@triton.jit
def _search_of(programs, MANY: tl.constexpr, SIDES: tl.constexpr):
    """(which of all searches a program is part of, on which side)"""
    search, side = row_of(programs, MANY), tl.program_id(1)
    if SIDES == 2:
        search = 2 * search + side
    return search, side


@triton.jit
def _narrowed(state, words, row, ROUND: tl.constexpr, BINS: tl.constexpr, COLUMNS: tl.constexpr):
    """(the bits of the k-th largest key that are known after ROUND histograms, which of the keys with them it is), from what
    is known before the last one, ``words [rows, BINS]``. All programs of a row write the same into ``state``.
    """
    at = state + COLUMNS * row + 2 * ROUND
    if ROUND == 0:
        known, wanted = tl.load(at + 2), tl.load(at + 3)
    else:
        lane = tl.arange(0, BINS)
        count = tl.load(words + row * BINS + lane)
        known, wanted = tl.load(at), tl.load(at + 1)
        reach = tl.sum(count, 0) - tl.cumsum(count, 0) + count  # how many are in this bin or above
        digit = tl.sum((reach >= wanted).to(tl.int32), 0) - 1
        known, wanted = known * BINS + digit, wanted - tl.sum(tl.where(lane > digit, count, 0), 0)
        tl.store(at + 2, known)
        tl.store(at + 3, wanted)
    return known, wanted


@triton.jit
def _pick(state, words, BINS: tl.constexpr, COLUMNS: tl.constexpr):
    """After the last histogram: the k-th largest key, into ``state``."""
    _narrowed(state, words, tl.program_id(0).to(tl.int64), 3, BINS, COLUMNS)


@triton.jit
def _refine(
    table, programs, x, n, tiles, spans, slabs, counts, state, words, finer,
    HELD: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, SIDES: tl.constexpr, ROUND: tl.constexpr, BINS: tl.constexpr,
    FINER: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr, CHUNK: tl.constexpr, ROOM: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """``finer [searches, FINER]``: how many keys there are for each value of the next bits, of those with the known bits of
    the k-th. What is outside counts as 0, in the lowest bin: it changes nothing about what is selected.
    """
    row, side = _search_of(programs, MANY, SIDES)
    known, _wanted = _narrowed(state, words, row, ROUND, BINS, COLUMNS)
    entire = tl.load(state + COLUMNS * row + 1) > 0
    tile, this, there, count, x, n, turns = tiles_at(
        table, programs, x, n, tiles, spans, counts, entire, HELD, MANY, EVEN, GROUP, CHUNK, ROOM, TILE
    )
    total = tl.zeros((FINER,), tl.int32)
    for turn in range(turns):
        _i, inside, p = noted(turn, tile, this, there, count, x, n, slabs, CHUNK, ROOM, TILE)
        inside = on_side(inside, p, side, SIDES)
        digit = (key_of_number(p, True) >> (20 - 10 * ROUND)) - known * FINER
        digit = tl.where(inside & (digit >= 0) & (digit < FINER), digit, 0)
        total += tl.histogram(tl.reshape(digit, (GROUP * CHUNK,)), FINER)
    tl.atomic_add(finer + row * FINER + tl.arange(0, FINER), total, total > 0)


@triton.jit
def _tally(
    table, programs, x, n, tiles, spans, slabs, counts, state, words, both, plane,
    HELD: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, SIDES: tl.constexpr, BINS: tl.constexpr,
    COLUMNS: tl.constexpr, GROUP: tl.constexpr, CHUNK: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """``both [SIDES, 2, plane]``: how many keys of each of all tiles are above the k-th largest, and how many equal to it."""
    row, side = _search_of(programs, MANY, SIDES)
    kth, _wanted = _narrowed(state, words, row, 3, BINS, COLUMNS)
    entire = tl.load(state + COLUMNS * row + 1) > 0
    tile, this, there, count, x, n, turns = tiles_at(
        table, programs, x, n, tiles, spans, counts, entire, HELD, MANY, EVEN, GROUP, CHUNK, ROOM, TILE
    )
    above, equal = count * 0, count * 0
    for turn in range(turns):
        _i, inside, p = noted(turn, tile, this, there, count, x, n, slabs, CHUNK, ROOM, TILE)
        inside = on_side(inside, p, side, SIDES)
        key = key_of_number(p, True)
        above += tl.sum((inside & (key > kth)).to(tl.int32), 1)[:, None]
        equal += tl.sum((inside & (key == kth)).to(tl.int32), 1)[:, None]
    if SIDES == 2:
        both += 2 * plane * side
    tl.store(both + this, above, there)
    tl.store(both + plane + this, equal, there)


@triton.jit(do_not_specialize=["least", "k"])
def _emit(
    table, programs, x, n, tiles, spans, slabs, counts, state, begins, plane, kept, index, sent, k, least, fronts,
    HELD: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, TOPK: tl.constexpr, KEEP_REST: tl.constexpr,
    NARROW: tl.constexpr, LISTED: tl.constexpr, KIND: tl.constexpr, MOST: tl.constexpr, BITS: tl.constexpr,
    COLUMNS: tl.constexpr, GROUP: tl.constexpr, CHUNK: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Writes places and what is sent for them; x keeps the rest. Of keys equal to the k-th the first ones are taken.

    LISTED: ``kept`` is a table of lists (:class:`grace.kernels.variable_sparse.triton.Lists`), and of a row that is sent
    without one everything is. KIND: codes are sent, which are relative to ``fronts [rows]``, and of some rows nothing.
    """
    row = row_of(programs, MANY)
    all_sent = row < 0
    if LISTED:
        all_sent = tl.load(kept + 8 * row + 2) == 3
        first = tl.load(kept + 8 * row + 1)
    else:
        _k, first = kept_of(kept, row, k, MANY)
    entire = all_sent
    if TOPK:
        kth = tl.load(state + COLUMNS * row + 8)
        wanted = tl.load(state + COLUMNS * row + 9)
        entire = entire | (tl.load(state + COLUMNS * row + 1) > 0)
    tile, this, there, count, x, n, turns = tiles_at(
        table, programs, x, n, tiles, spans, counts, entire, HELD, MANY, EVEN, GROUP, CHUNK, ROOM, TILE
    )
    begin = tl.load(begins + this, there, 0)
    equals = begin
    if TOPK:
        equals = tl.load(begins + plane + this, there, 0)
        begin += tl.minimum(equals, wanted)
    begin = tl.where(all_sent, tile * TILE, begin)
    for turn in range(turns):
        i, inside, p = noted(turn, tile, this, there, count, x, n, slabs, CHUNK, ROOM, TILE)
        key = key_of_number(p, TOPK)
        if TOPK:
            equal = (inside & (key == kth)).to(tl.int32)
            keep = inside & ((key > kth) | ((equal > 0) & (equals + tl.cumsum(equal, 1) <= wanted)))
            equals += tl.sum(equal, 1)[:, None]
        else:
            keep = inside & (key >= bound_of(least, row, LISTED))
        keep = keep | (inside & all_sent)
        if KIND:
            keep = keep & (tl.load(kept + 8 * row) > 0)
        ones = keep.to(tl.int32)
        at = first + begin + tl.cumsum(ones, 1) - ones
        begin += tl.sum(ones, 1)[:, None]
        value = p
        if NARROW:
            value = nearest_bfloat16(p)
        payload = value
        if KIND:
            word = tl.load(fronts + row)
            payload = code_of_number(p, word, KIND, MOST)
            value = number_of_code(payload, word, KIND)
        tl.store(index + at, i.to(tl.int64), keep & (all_sent == 0))
        tl.store(sent + at, payload, keep)
        if KEEP_REST:
            tl.store(x + i, p - value, keep)


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
    b = len(rows)
    index, sent = rows.new_empty(b, k, dtype=torch.int64), rows.new_empty(b, k, dtype=torch.float32)
    notes = Notes.of_largest(Look.at(rows), rows, memory, memory is not None, None, k)
    p, finite = add_memory(rows, memory, rest, notes)
    _take_largest(Look.at(p), notes, None, k, index, sent, rest is not None, narrow)
    return index, sent, finite


def take_topk_many(
    index: Tensor, sent: Tensor, many: TensorList, kept: tuple[int, ...], *, narrow: bool = False
) -> Any:
    if max(many.sizes) > MOST:
        return NotImplemented
    look, ks = Look.at_many(many), many.kept(kept)
    notes = Notes.of_largest(look, index, None, many.memories is not None, ks, None)
    finite = measure_many(look, many, notes)
    _take_largest(look, notes, ks, None, index, sent, many.rests is not None, narrow)
    return finite


def add_memories_many(storage: Tensor, many: TensorList) -> Tensor:
    return measure_many(Look.at_many(many), many, None)


class Reaching(NamedTuple):
    """The numbers that reach the bounds of several rows, listed.

    finite: bool ``[T]``, which tensors are. total: int32 ``[rows]``, how many numbers there are.
    """

    finite: Tensor
    look: Look
    notes: Notes
    begins: Tensor
    total: Tensor

    @staticmethod
    def of(many: TensorList, bounds: Tensor, strict: bool) -> Reaching:
        """Lists the numbers that reach (strict: exceed) ``bounds [rows]`` float64, of sums with memories, which the rests
        become.
        """
        limits, look = bounds.clamp_max(_LARGEST) if strict else bounds, Look.at_many(many)
        least = torch.where(bounds >= 0, limits.float().view(torch.int32) + int(strict), 0)
        notes = Notes.of(look, bounds.device, None, least)
        finite = measure_many(look, many, notes)
        begins, total = look.scan(notes.counts)
        return Reaching(finite, look, notes, begins, total[0])

    def emit(self, lists: Tensor, index: Tensor, sent: Tensor, keep_rest: bool, payload: Payload) -> None:
        """Writes places and what is sent for them, ``[K]`` each, where ``lists [rows, 8]`` say."""
        self.look.read(_emit, self.notes, self.begins, None, lists, index, sent, None, self.notes.least, payload.fronts,
                       TOPK=False, KEEP_REST=keep_rest, NARROW=payload.narrow, LISTED=True,
                       **coding(payload.codes))  # fmt: skip


class Largest(NamedTuple):
    """The k largest numbers of several rows, noted. total: int32 ``[rows]``, the k of each."""

    look: Look
    notes: Notes
    begins: Tensor
    total: Tensor

    @staticmethod
    def of(look: Look, many: TensorList, total: Tensor) -> Largest:
        """The ``total [rows]`` int32 largest, where there are no memories to add."""
        kept = torch.stack((total, torch.zeros_like(total)), dim=1).long()
        notes = Notes.of_largest(look, total, None, False, kept, None)
        measure_many(look, many, notes)
        return Largest(look, notes, count_largest(look, notes), total)

    def emit(self, lists: Tensor, index: Tensor, sent: Tensor, keep_rest: bool, payload: Payload) -> None:
        """As :meth:`Reaching.emit`, ``[K]`` each."""
        self.look.read(_emit, self.notes, self.begins, self.look.tiles, lists, index, sent, None, 0, payload.fronts,
                       TOPK=True, KEEP_REST=keep_rest, NARROW=payload.narrow, LISTED=True,
                       **coding(payload.codes))  # fmt: skip


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
    """True if the kernels take them."""
    return rows.dtype in (READ if memory is not None else (torch.float32,)) and rows.shape[-1] <= MOST


def _take_above(
    rows: Tensor, least: int, memory: Tensor | None, rest: Tensor | None, narrow: bool
) -> tuple[Tensor, Tensor, Flag]:
    """All of ``rows [1, n] + memory`` whose key is at least ``least``; the host is told how many there are."""
    notes = Notes.of(Look.at(rows), rows.device, None, least)
    p, finite = add_memory(rows, memory, rest, notes)
    look = Look.at(p)
    begins, total = look.scan(notes.counts)
    k = int(total)
    index, sent = p.new_empty(k, dtype=torch.int64), p.new_empty(k)
    if k:
        look.read(_emit, notes, begins, look.tiles, None, index, sent, k, least, None,
                  TOPK=False, KEEP_REST=rest is not None, NARROW=narrow, LISTED=False, **coding(None))  # fmt: skip
    return index, sent, finite


def _histograms(look: Look, notes: Notes) -> Tensor:
    """Three of the keys that are noted, each of those that the one before leaves: the last, int32 ``[searches, 1024]``."""
    sizes = [look.rows * look.sides * bins for bins in _BINS]
    words = torch.zeros(sum(sizes), dtype=torch.int32, device=notes.counts.device).split(sizes)
    for r in range(3):
        look.search(_refine, notes, words[r], words[r + 1], ROUND=r, BINS=_BINS[r], FINER=_BINS[r + 1])
    return words[3]


def find_kth(look: Look, notes: Notes) -> Tensor:
    """int32 ``[rows]``: the k-th largest key of each row, of which the k largest are noted."""
    state = notes.state
    assert state is not None
    launch(_pick, (look.rows,), state, _histograms(look, notes), BINS=_BINS[3], COLUMNS=COLUMNS)
    return state[:, 8].contiguous()


def count_largest(look: Look, notes: Notes) -> Tensor:
    """``[2 sides, tiles]``: how many larger keys than the k-th come before each tile in its row, and how many equal ones."""
    both = notes.counts.new_empty(2 * look.sides, look.tiles)
    look.search(_tally, notes, _histograms(look, notes), both, look.tiles, BINS=_BINS[3])
    return look.scan(both)[0]


def _take_largest(
    look: Look, notes: Notes, kept: Tensor | None, k: int | None, index: Tensor, sent: Tensor, keep_rest: bool, narrow: bool
) -> None:  # fmt: skip
    """Writes the k largest of each row into ``index`` and ``sent``."""
    begins = count_largest(look, notes)
    look.read(_emit, notes, begins, look.tiles, kept, index, sent, k, 0, None,
              TOPK=True, KEEP_REST=keep_rest, NARROW=narrow, LISTED=False, **coding(None))  # fmt: skip


def _least_key(bound: float, strict: bool) -> int:
    """The least key that is selected."""
    if not bound >= 0:
        return 0
    return int(torch.tensor(bound, dtype=torch.float32, device="cpu").view(torch.int32)) + strict
