"""Reading of rows by kernels of selection: sums with a memory, the keys of these, and notes of what may be selected.

The key of a number is its magnitude's 31 bits: an integer in the order of magnitudes. Only the first pass looks at all
numbers. What may be selected it notes: in tiles of 4,096 numbers, each with room for 512 places; a tile with more is read
whole again. Of the k largest, those may be that reach a key which a sample of the row has, before the first pass: somewhat
more than k, if the sample is like the row. If there are fewer, all tiles of the row are read whole: what is selected does not
depend on samples.

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
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.triton import numbers_of, tensor_of, tile_of, wire_of
from grace.kernels.triton import load_number, load_sum, magnitude, mark_if, store_tile
from grace.kernels.triton.bit_streams import scan

_TILE, ROOM = 4096, 512  # numbers of a tile, and how many of them are noted
_GROUP, _CHUNK = 8, 128  # tiles whose notes a program reads, and how many of each at a time
_SAMPLE, _BITS = 8192, 16  # numbers of a sample, and how many bits its key has
COLUMNS = 10  # of the state of a search: see Notes
MOST = (1 << 31) - _GROUP * _TILE  # what a program reads beyond the numbers is counted, too, in 32 bits


@triton.jit
def key_of_number(p, CLAMP: tl.constexpr):
    """The magnitudes' bits; with ``CLAMP`` a NaN counts as infinite."""
    key = magnitude(p)
    if CLAMP:
        key = tl.minimum(key, 0x7F800000)
    return key


@triton.jit
def row_at(table, programs, x, n, tiles, spans, HELD: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr):
    """The input of one program: (its row, which of its tiles or of its groups of tiles, the row's first tile of all, x,
    where the row starts in it, n).
    """
    if MANY:
        task, tile = tile_of(programs)
        head = tl.load(spans + 2 * task)
        x, start = numbers_of(table, task, x, EVEN)
        if HELD:
            x = tensor_of(table, task, 2, EVEN)
        _place, n = wire_of(table, task)
    else:
        task = tl.program_id(1).to(tl.int64)
        tile = tl.program_id(0).to(tl.int64)
        n = tile - tile + n
        head, start = task * tiles, task * n
    return task, tile, head, x, start, n


@triton.jit
def row_of(programs, MANY: tl.constexpr):
    """The row, of all, that a program reads."""
    if MANY:
        task, _tile = tile_of(programs)
    else:
        task = tl.program_id(1).to(tl.int64)
    return task


@triton.jit
def on_side(inside, p, side, SIDES: tl.constexpr):
    """Mask of those ``inside`` that are numbers of a side, 0: positive, 1: negative. With one side all are."""
    if SIDES == 2:
        inside = inside & tl.where(side == 0, p > 0, p < 0)
    return inside


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


@triton.jit(do_not_specialize=["k"])
def _estimate(
    table, x, n, e, state, kept, k,
    MANY: tl.constexpr, EVEN: tl.constexpr, HAS_MEMORY: tl.constexpr, SIDES: tl.constexpr, COLUMNS: tl.constexpr,
    BITS: tl.constexpr, SAMPLE: tl.constexpr,
):  # fmt: skip
    """The state that a search for the k-th largest key begins with (see ``Notes``): of a row that is not longer than its
    sample, at least k numbers reach the key; of another more than k but once in 10^5, if no period of it meets the sample's.
    """
    row = tl.program_id(0).to(tl.int64)
    if MANY:
        x, start = numbers_of(table, row, x, EVEN)
        e = tensor_of(table, row, 1, EVEN)
        _place, n = wire_of(table, row)
    else:
        n = row - row + n
        start = row * n
    search, side = row, tl.program_id(1)
    if SIDES == 2:
        search = 2 * row + side
    k, _first = kept_of(kept, search, k, MANY)
    lane = tl.arange(0, SAMPLE)
    step = ((n + SAMPLE - 1) // SAMPLE).to(tl.int32)
    turn = ((lane * 5063) & 8191) * step >> 13  # anywhere in the step, which may be the length of a matrix's rows
    i = lane.to(tl.int64) * step + turn
    p = load_sum(x + start, e + start, i, i < n, HAS_MEMORY)
    key = tl.where(on_side(i < n, p, side, SIDES), key_of_number(p, True), -1)
    share = tl.sum((i < n).to(tl.int32), 0).to(tl.float32) * tl.div_rn(k.to(tl.float32), n.to(tl.float32))
    wanted = tl.where(step == 1, k.to(tl.float32), share + 4.0 * tl.sqrt_rn(share) + 8.0)
    bound = (row - row).to(tl.int32)
    for t in range(BITS):
        higher = bound | (1 << (30 - t))
        reach = tl.sum((key >= higher).to(tl.int32), 0)
        bound = tl.where(reach.to(tl.float32) >= wanted, higher, bound)
    at = state + COLUMNS * search
    tl.store(at, tl.maximum(bound, 1))
    tl.store(at + 1, k.to(tl.int32))
    tl.store(at + 2, 0)
    tl.store(at + 3, k.to(tl.int32))


@triton.jit(do_not_specialize=["least"])
def _measure(
    table, programs, x, n, tiles, spans, e, rest, bad, slabs, counts, state, least, signs,
    HELD: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, HAS_MEMORY: tl.constexpr, COPY: tl.constexpr,
    NOTE: tl.constexpr, TOPK: tl.constexpr, EACH: tl.constexpr, SIDES: tl.constexpr, SIGNS: tl.constexpr,
    COLUMNS: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """``rest = x + e``, and a mark if it is not finite. NOTE: the places of the numbers that may be selected, tile by tile:
    their count, and the first ``ROOM`` of them. SIGNS: how many are positive and negative, added to ``signs [rows, 2]``.
    """
    row, tile, head, x, start, n = row_at(table, programs, x, n, tiles, spans, 0, MANY, EVEN)
    if MANY:
        e, rest = tensor_of(table, row, 1, EVEN), tensor_of(table, row, 2, EVEN)
        bad = bad + row
    lane = tl.arange(0, TILE)
    left = tl.minimum(n - tile * TILE, TILE).to(tl.int32)
    start += tile * TILE
    p = load_sum(x + start, e + start, lane, lane < left, HAS_MEMORY, left == TILE)
    key = magnitude(p)
    mark_if(bad, key >= 0x7F800000)
    if COPY:
        store_tile(rest + start + lane, p, lane < left, left == TILE)
    if SIGNS:
        tl.atomic_add(signs + 2 * row, tl.sum((p > 0).to(tl.int32), 0))
        tl.atomic_add(signs + 2 * row + 1, tl.sum((p < 0).to(tl.int32), 0))
    if NOTE:
        if TOPK:
            bound = tl.load(state + COLUMNS * SIDES * row)
            if SIDES == 2:
                bound = tl.where(p > 0, bound, tl.load(state + COLUMNS * (2 * row + 1)))
        else:
            bound = bound_of(least, row, EACH)
        keep = key >= bound
        if TOPK == 0:  # else the least key is at least 1, and 0 is what lies outside
            keep = keep & (lane < left)
        keep = keep.to(tl.int32)
        at = tl.cumsum(keep, 0) - keep
        count = tl.sum(keep, 0)
        tl.store(slabs + (head + tile) * ROOM + at, lane.to(tl.int16), (keep > 0) & (at < ROOM))
        tl.store(counts + head + tile, count)
        if TOPK:
            for side in tl.static_range(SIDES):
                if SIDES == 2:
                    count = tl.sum(on_side(keep > 0, p, side, SIDES).to(tl.int32), 0)
                tl.atomic_add(state + COLUMNS * (SIDES * row + side) + 1, -count, count > 0)


@triton.jit
def tiles_at(
    table, programs, x, n, tiles, spans, counts, entire,
    HELD: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr,
    GROUP: tl.constexpr, CHUNK: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The tiles whose notes a program reads: (``[GROUP, 1]`` which of their row, which of all, whether they are there, how
    many numbers they have noted, -1: they are read whole; where the row begins, n, how often CHUNK numbers of each are read).
    A row of which all is sent, or where too few have been noted, is read whole: ``entire``.
    """
    _row, group, head, x, start, n = row_at(table, programs, x, n, tiles, spans, HELD, MANY, EVEN)
    tile = group.to(tl.int32) * GROUP + tl.arange(0, GROUP)
    there = tile < (n + TILE - 1) // TILE
    count = tl.load(counts + head + tile, there, 0)
    count = tl.where((count <= ROOM) & (entire == 0), count, -1)
    turns = tl.where(count < 0, TILE, count + CHUNK - 1) // CHUNK
    turns = tl.max(tl.where(there, turns, 0), 0)
    this = (head + tile)[:, None]
    return tile[:, None], this, there[:, None], count[:, None], x + start, n.to(tl.int32), turns


@triton.jit
def noted(
    turn, tile, this, there, count, x, n, slabs, CHUNK: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """The next CHUNK numbers that tiles have noted, or of all of them: ``[GROUP, CHUNK]`` (places in the row, ascending in
    each tile; whether they count; the numbers there).
    """
    lane = turn * CHUNK + tl.arange(0, CHUNK)[None, :]
    short = tl.load(slabs + this * ROOM + lane, lane < count, 0).to(tl.int32)
    i = tile * TILE + tl.where(count < 0, lane, short)
    inside = (lane < count) | (there & (count < 0) & (i < n))
    return i, inside, load_number(x, i, inside)


class Notes(NamedTuple):
    """Candidates for selection, of all tiles: ``slabs`` int16 ``[tiles, 512]`` and ``counts`` int32 ``[1, tiles]``.

    state: int32 ``[searches, 10]``, of each search for the k-th largest key: the least key that is noted; how many numbers
        less than k are noted; then four times what is known of that key after 0 to 3 histograms: its upper bits, and which of
        the keys with these it is. None: there is no search.
    least: the least key that is noted, where there is none, of all rows or int32 ``[rows]``.
    """

    slabs: Tensor
    counts: Tensor
    state: Tensor | None
    least: int | Tensor

    @staticmethod
    def of(look: Look, device: torch.device, state: Tensor | None, least: int | Tensor = 0) -> Notes:
        """Without anything noted; ``state [rows, 10]`` and ``least [rows]`` as above."""
        slabs = torch.empty(look.tiles, ROOM, dtype=torch.int16, device=device)
        return Notes(slabs, torch.empty(1, look.tiles, dtype=torch.int32, device=device), state, least)

    @staticmethod
    def of_largest(
        look: Look, like: Tensor, memory: Tensor | None, added: bool, kept: Tensor | None, k: int | None
    ) -> Notes:
        """For the k largest of each search; ``kept`` is None, or int64 ``[searches, 2]`` that says k for each. added: there
        are memories, of which ``memory [b, n]`` is that of the only tensor. ``like``, of any shape, is on their device.
        """
        state = torch.empty(look.rows * look.sides, COLUMNS, dtype=torch.int32, device=like.device)
        table, x, n, _tiles, _spans = look.given
        how = {name: look.constants[name] for name in ("MANY", "EVEN")}
        launch(_estimate, (look.rows, look.sides), table, x, n, memory, state, kept, k, **how, HAS_MEMORY=added,
               SIDES=look.sides, COLUMNS=COLUMNS, BITS=_BITS, SAMPLE=_SAMPLE, num_warps=8)  # fmt: skip
        return Notes.of(look, like.device, state)


class Look(NamedTuple):
    """Arguments with which kernels read rows.

    given: where they find them. rows, tiles: how many there are of all. many: the tensors, where there are several. constants:
    as kernels have them. sides: 2: there is a search of its own for the positive numbers of each of many rows, and for the
    negative ones; 1: one for all.
    """

    given: tuple[Any, ...]
    rows: int
    tiles: int
    many: TensorList | None
    constants: dict[str, Any]
    sides: int = 1

    @staticmethod
    def at(x: Tensor) -> Look:
        """At rows ``[b, n]``."""
        (b, n), tiles = x.shape, block_count(x.shape[1], _TILE)
        constants = {"HELD": False, "MANY": False, "EVEN": False}
        return Look((None, x, n, tiles, None), b, tiles * b, None, constants)

    @staticmethod
    def at_many(many: TensorList, sides: int = 1) -> Look:
        """At several tensors, or their rests where they have some."""
        constants = {"HELD": many.rests is not None, "MANY": True, "EVEN": many.even}
        spans = many.spans(_TILE, lambda: many.counts(_TILE))
        given = (many.table, many.like, None, None, spans)
        return Look(given, len(many), sum(many.counts(_TILE)), many, constants, sides)

    def launch(self, kernel: Any, *args: Any, group: int = 1, sides: int = 1, **constants: Any) -> None:
        """Launches a kernel for all tiles, of which a program handles so many; for each of many rows' ``sides``."""
        table, x, n, tiles, spans = self.given
        if self.many is None:
            programs, grid = None, (block_count(tiles, group), self.rows)
        else:
            programs = self.many.tiles(_TILE * group)
            grid = (len(programs), sides)
        launch(kernel, grid, table, programs, x, n, tiles, spans, *args, **self.constants, **constants, TILE=_TILE)

    def read(self, kernel: Any, notes: Notes, *args: Any, **constants: Any) -> None:
        """Launches a kernel that reads notes."""
        self.launch(kernel, notes.slabs, notes.counts, notes.state, *args, group=_GROUP, **constants, COLUMNS=COLUMNS,
                    GROUP=_GROUP, CHUNK=_CHUNK, ROOM=ROOM)  # fmt: skip

    def scan(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Running sums of ``counts [planes, tiles]``: (those before in the row, ``[planes, rows]`` how many there are)."""
        if self.many is not None:
            return scan(counts, self.given[-1])
        planes = len(counts)
        begins, total = scan(counts.view(planes * self.rows, -1))
        return begins, total.view(planes, self.rows)

    def search(self, kernel: Any, notes: Notes, *args: Any, **constants: Any) -> None:
        """Launches a kernel that reads notes, for each search."""
        self.read(kernel, notes, *args, sides=self.sides, SIDES=self.sides, **constants)

    def measure(
        self,
        marks: Marks,
        memory: Tensor | None,
        rest: Tensor | None,
        notes: Notes | None,
        added: bool,
        copy: bool,
        signs: Tensor | None = None,
    ) -> None:
        """Sums with memories (added: there are some), copied into the rests with ``copy``, and notes of them, if wanted.

        memory, rest: ``[b, n]`` of the only tensor. signs: see :func:`measure_many`.
        """
        slabs, counts, state, least = notes or (None, None, None, 0)
        self.launch(_measure, memory, rest, marks.clean, slabs, counts, state, least, signs, HAS_MEMORY=added, COPY=copy,
                    NOTE=notes is not None, TOPK=state is not None, EACH=isinstance(least, Tensor), SIDES=self.sides,
                    SIGNS=signs is not None, COLUMNS=COLUMNS, ROOM=ROOM, num_warps=8)  # fmt: skip


def add_memory(rows: Tensor, memory: Tensor | None, rest: Tensor | None, notes: Notes) -> tuple[Tensor, Flag]:
    """(``rows + memory``, in ``rest`` if there is one; whether it is finite). What may be selected is noted."""
    check_rows(rows=rows, memory=memory, rest=rest)
    marks = Marks(rows)
    if rest is None:
        rest = rows if memory is None else torch.empty_like(memory)
    copy = rest.data_ptr() != rows.data_ptr() or memory is not None
    Look.at(rows).measure(marks, memory, rest, notes, memory is not None, copy)
    return rest, marks.unset()


def measure_many(look: Look, many: TensorList, notes: Notes | None, signs: Tensor | None = None) -> Tensor:
    """Sets the rests of several tensors, where they have some, to their sums with the memories, and notes what may be
    selected, if that is wanted: ``[T]`` bool, which of them are finite. signs: int32 ``[T, 2]``, to which is added how many
    numbers are positive, and how many negative.
    """
    marks, held, added = many.marks(), many.rests is not None, many.memories is not None
    look.measure(marks, None, None, notes, added, held and (added or many.rests is not many.xs), signs)
    return many.all_of(marks.clean)
