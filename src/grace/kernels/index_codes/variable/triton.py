"""Codes of gaps as Triton kernels: sums of what comes before are counts of tiles, a scan, then sums within the tile.

Rice: the j-th zero of the unary part, at bit e, says ``e - j`` for the sum of the first gaps' upper bits; their lower bits are
summed likewise. Delta: where a block begins is a sum of widths.

DELTA: which of the two it is. A tile is 1,024 gaps, or as many bits that a kernel looks for zeros in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace import wire as wires
from grace.compute.host import host_int64
from grace.compute.launching import TILE, Marks, launch
from grace.kernels.blocks import block_count
from grace.kernels.index_codes.fixed.triton import bit_of, code_of, place_in
from grace.kernels.index_codes.gaps import BLOCK, rice_parameter
from grace.kernels.index_codes.variable import GapLists, GapPairs, GapPlaces
from grace.kernels.sparse.triton import AT_ONCE, sum_tables
from grace.kernels.tensor_list import TensorList, carry_together, pair_programs, spans_of
from grace.kernels.tensor_list.triton import tile_of, wire_of
from grace.kernels.triton import mark_if
from grace.kernels.triton.bit_streams import first_reaching, load_bits, pack_byte, scan
from grace.kernels.variable_sparse import Chosen

_MOST = (1 << 31) - 1


# ---- written --------------------------------------------------------------------------------------------------------
@triton.jit
def _gaps_of(index, j, inside):
    """int64: how many places lie between each of a list and the one before; 0 outside."""
    return tl.load(index + j, inside, 0) - tl.load(index + j - 1, inside & (j > 0), -1) - 1


@triton.jit
def _blocks_of(gap, tile, k, TILE: tl.constexpr):
    """(int64: how many bits the gaps of each block of a tile need, how many bytes the block)"""
    top = tl.max(tl.reshape(gap, (TILE // 128, 128)), 1)
    width = top - top
    for b in tl.static_range(0, 31):
        width += ((top >> b) > 0).to(tl.int64)
    count = tl.minimum(tl.maximum(k - tile * TILE - 128 * tl.arange(0, TILE // 128), 0), 128)
    return width, (width * count + 7) // 8


@triton.jit
def _measure(programs, lists, index, counts, DELTA: tl.constexpr, TILE: tl.constexpr):
    """Bytes of the blocks of each tile, or the count of ones that its gaps have in unary."""
    row, tile = tile_of(programs)
    k, first, _block, low, _head, _begin, _before = code_of(lists, row)
    j = tile * TILE + tl.arange(0, TILE)
    gap = _gaps_of(index + first, j, j < k)
    if DELTA:
        _width, size = _blocks_of(gap, tile, k, TILE)
    else:
        size = gap >> low
    tl.store(counts + tl.program_id(0), tl.sum(size, 0).to(tl.int32))


@triton.jit
def _lay(programs, lists, index, begins, gaps, ends, widths, DELTA: tl.constexpr, TILE: tl.constexpr):
    """``gaps [K]``, and of each its zero in unary, or of each block where it begins and how many bits its gaps have."""
    row, tile = tile_of(programs)
    k, first, block, low, _head, _begin, _before = code_of(lists, row)
    j = tile * TILE + tl.arange(0, TILE)
    gap = _gaps_of(index + first, j, j < k)
    tl.store(gaps + first + j, gap, j < k)
    begin = tl.load(begins + tl.program_id(0)).to(tl.int64)
    if DELTA:
        width, size = _blocks_of(gap, tile, k, TILE)
        c = tile * (TILE // 128) + tl.arange(0, TILE // 128)
        tl.store(ends + block + c, begin + tl.cumsum(size, 0) - size, 128 * c < k)
        tl.store(widths + block + c, width, 128 * c < k)
    else:
        tl.store(ends + first + j, begin + tl.cumsum(gap >> low, 0) + j, j < k)


@triton.jit
def _rice_byte(gaps, ends, o, k, low, head, size, steps):
    """int64: bytes o of the code."""
    byte = tl.where(o == 0, low, 0)
    if low > 0:
        field = pack_byte(gaps, tl.maximum(o - 1, 0), k, low).to(tl.int64)
        byte = tl.where((o > 0) & (o < head), field, byte)
    bit = 8 * (o - head)
    inside = (bit >= 0) & (o < size)
    first = first_reaching(ends, bit, k, steps, inside, 0, 0)
    zeros = bit - bit
    for t in tl.static_range(0, 8):
        there = inside & (first + t < k)
        end = tl.load(ends + first + t, there, 0) - bit
        there = there & (end < 8)
        zeros |= tl.where(there, (bit - bit + 1) << tl.where(there, end, 0), 0)
    left = tl.minimum(tl.maximum(tl.load(ends + k - 1, k > 0, 0) + 1 - bit, 0), 8)  # bits up to the last zero
    return tl.where(inside, ((bit - bit + 1 << left) - 1) & ~zeros, byte)


@triton.jit
def _delta_byte(gaps, starts, widths, o, k, head, size, steps):
    """int64: bytes o of the code."""
    blocks = (k + 127) // 128
    byte = pack_byte(widths, tl.minimum(tl.maximum(o, 0), head), blocks, 5).to(tl.int64)
    at = o - head
    inside = (at >= 0) & (o < size)
    c = tl.maximum(first_reaching(starts, at + 1, blocks, steps, inside, 0, 0) - 1, 0)  # the last that begins there
    width = tl.maximum(tl.load(widths + c, inside, 1), 1)
    bit = 8 * (at - tl.load(starts + c, inside, 0))
    first = bit // width
    packed = bit - bit
    for t in tl.static_range(0, 8):
        j = first + t
        shift = j * width - bit  # of this field into the byte; negative where it began in one before
        there = inside & (j < 128) & (128 * c + j < k) & (shift < 8)
        field = tl.load(gaps + 128 * c + j, there, 0)
        packed |= tl.where(shift < 0, field >> tl.maximum(-shift, 0), field << tl.minimum(tl.maximum(shift, 0), 7))
    return tl.where(inside, packed & 0xFF, byte)


@triton.jit(do_not_specialize=["steps"])
def _write(programs, lists, sizes, fields, gaps, ends, widths, message, steps, DELTA: tl.constexpr, TILE: tl.constexpr):
    """Wires: what comes before, and the code, of ``sizes [T]`` bytes each."""
    row, tile = tile_of(programs)
    k, first, block, low, head, begin, before = code_of(lists, row)
    size = tl.load(sizes + row)
    i = tile * TILE + tl.arange(0, TILE)
    o = tl.maximum(i - before, 0)
    if DELTA:
        byte = _delta_byte(gaps + first, ends + block, widths + block, o, k, head, size, steps)
    else:
        byte = _rice_byte(gaps + first, ends + first, o, k, low, head, size, steps)
    field = tl.load(fields + begin + i, i < before, 0).to(tl.int64)
    byte = tl.where(i < before, field, byte)
    tl.store(message + place_in(lists, row) + i, byte.to(tl.uint8), i < before + size)


# ---- read -----------------------------------------------------------------------------------------------------------
@triton.jit
def _code_at(table, programs, lists, sizes, wires, stride, b):
    """The input of one program: (its row, which of the row's tiles, which of all tiles, which of all lists, n, k, where the
    code begins, and how many bytes it may have, where its list goes among those of a wire)
    """
    row, tile = tile_of(programs)
    other = tl.program_id(1).to(tl.int64)
    _place, n = wire_of(table, row)
    k, first, _block, _low, _head, _begin, before = code_of(lists, row)
    base = wires + other * stride + place_in(lists, row) + before
    size = tl.load(sizes + other * b + row)
    return row, tile, other * tl.num_programs(0) + tl.program_id(0), other, n, k, base, size, first


@triton.jit
def _rice_at(base, n, k, size):
    """(how many low bits are packed, their bytes, those of what is in unary, at most; whether the code is as long)"""
    low = tl.load(base).to(tl.int64)
    legal = low <= 31
    low = tl.minimum(low, 31)
    packed = (k * low + 7) // 8
    unary = tl.minimum(size - 1 - packed, (k + ((n - k) >> low) + 7) // 8)
    return low, packed, tl.maximum(unary, 0), legal & (1 + packed <= size)


@triton.jit
def _delta_gaps(base, begin, tile, k, size, TILE: tl.constexpr):
    """(int64: the gaps of a tile, whose blocks begin ``begin`` bytes behind the first; the bytes of these blocks)"""
    blocks = (k + 127) // 128
    head = (5 * blocks + 7) // 8
    c = tile * (TILE // 128) + tl.arange(0, TILE // 128)
    width = load_bits(base, c, c < blocks, tl.minimum(head, size), 5)
    count = tl.minimum(tl.maximum(k - 128 * c, 0), 128)
    lane = tl.arange(0, 128).to(tl.int64)[None, :]
    bit = lane * width[:, None]
    at = (head + begin + tl.cumsum(16 * width, 0) - 16 * width)[:, None] + bit // 8
    inside = lane < count[:, None]
    word = bit - bit
    for t in tl.static_range(0, 5):
        there = inside & (at + t < size)
        word |= tl.load(base + at + t, there, 0).to(tl.int64) << (8 * t)
    gap = (word >> (bit % 8)) & ((bit - bit + 1 << width[:, None]) - 1)
    return tl.reshape(tl.where(inside, gap, 0), (TILE,)), tl.sum((width * count + 7) // 8, 0)


@triton.jit
def _store_sum(at, marks, total):
    """A sum of gaps that no list below 2**31 has is marked, and counts as 0."""
    tl.store(marks, 0, total >= 0x7FFFFFFF)
    tl.store(at, tl.where(total < 0x7FFFFFFF, total, 0).to(tl.int32))


@triton.jit(do_not_specialize=["stride", "b", "plane"])
def _count(
    table, programs, lists, sizes, wires, counts, marks, stride, b, plane, DELTA: tl.constexpr, TILE: tl.constexpr
):
    """Bytes of the blocks of each tile; or the count of its zeros in unary, and ``plane`` further the sum of low bits."""
    row, tile, this, _other, n, k, base, size, _first = _code_at(table, programs, lists, sizes, wires, stride, b)
    if DELTA:
        _gap, width = _delta_gaps(base, 0, tile, k, size, TILE)
        tl.store(counts + this, width.to(tl.int32))
    else:
        i = tile * TILE + tl.arange(0, TILE)
        low, packed, unary, legal = _rice_at(base, n, k, size)
        tl.store(marks + row, 0, legal == 0)
        zero = (i < 8 * unary) & (bit_of(base + 1 + packed, i, i < 8 * unary) == 0)
        tl.store(counts + this, tl.sum(zero.to(tl.int32), 0))
        field = load_bits(base + 1, i, i < k, tl.minimum(packed, size - 1), low)
        _store_sum(counts + plane + this, marks + row, tl.sum(field, 0))


@triton.jit(do_not_specialize=["stride", "b", "K"])
def _place(
    table, programs, lists, sizes, wires, begins, total, sums, index, marks, stride, b, K,
    DELTA: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """``sums`` of each tile's gaps; or ``index [W, K]``: the sums of the upper bits of gaps up to each. Marks codes that end
    early, and what comes after the last zero if it is not zero.
    """
    row, tile, this, other, n, k, base, size, first = _code_at(table, programs, lists, sizes, wires, stride, b)
    there = tl.load(total + other * b + row)
    if DELTA:
        gap, _width = _delta_gaps(base, tl.load(begins + this).to(tl.int64), tile, k, size, TILE)
        tl.store(marks + row, 0, (there < 0) | ((5 * ((k + 127) // 128) + 7) // 8 + there > size))
        _store_sum(sums + this, marks + row, tl.sum(gap, 0))
    else:
        i = tile * TILE + tl.arange(0, TILE)
        _low, packed, unary, _legal = _rice_at(base, n, k, size)
        tl.store(marks + row, 0, there < k)
        bit = bit_of(base + 1 + packed, i, i < 8 * unary)
        zero = ((i < 8 * unary) & (bit == 0)).to(tl.int64)
        j = tl.load(begins + this) + tl.cumsum(zero, 0) - zero
        keep = (zero > 0) & (j < k)
        tl.store(index + other * K + first + j, i - j, keep)
        last = tl.max(tl.where(keep & (j == k - 1), i, -1), 0)
        mark_if(marks + row, (last >= 0) & (i > last) & (i < (last // 8 + 1) * 8) & (bit > 0))


@triton.jit(do_not_specialize=["stride", "b", "K"])
def _finish(
    table, programs, lists, sizes, wires, begins, sums, index, marks, stride, b, K,
    DELTA: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """``index [W, K]``: the lists, kept in [0, n). Marks those that leave it. ``begins``: where blocks begin; ``sums``: those
    of gaps, or of their low bits, before each tile.
    """
    row, tile, this, other, n, k, base, size, first = _code_at(table, programs, lists, sizes, wires, stride, b)
    j = tile * TILE + tl.arange(0, TILE)
    at = index + other * K + first + j
    before = tl.load(sums + this).to(tl.int64)
    if DELTA:
        gap, _width = _delta_gaps(base, tl.load(begins + this).to(tl.int64), tile, k, size, TILE)
        place = before + tl.cumsum(gap, 0) + j
    else:
        low, packed, _unary, _legal = _rice_at(base, n, k, size)
        field = load_bits(base + 1, j, j < k, tl.minimum(packed, size - 1), low)
        place = (tl.load(at, j < k, 0) << low) + before + tl.cumsum(field, 0) + j
    mark_if(marks + row, (j < k) & ((place < 0) | (place >= n) | (before < 0)))
    tl.store(at, tl.minimum(tl.maximum(place, 0), n - 1), j < k)


# ---- launched -------------------------------------------------------------------------------------------------------
class GapTable:
    """Sizes and positions of lists of places below each of ``sizes``, whatever is in them. ``rooms``: for how many places
    each has room where they lie side by side; as many as it has.

    lists: int64 ``[T, 8]``: k, where the list begins and its first block among those of all, r, bytes of its code whose number
    is known, where the fields before it begin among those of all, their bytes, and 0. fixed: int64 ``[T]``, bytes that all
    wires have. before: of each, bytes in front of its code. programs, spans: of the lists. total: of all rooms. blocks: of all
    lists. steps: bits of the largest k.
    """

    def __init__(self, sizes: Sequence[int], device: torch.device, lists: GapLists, rooms: Sequence[int] | None = None):
        lines, begins = list[list[int]](), [0, 0, 0]
        heads = lists.heads(sizes)
        for n, k, before, head, room in zip(sizes, lists.kept, lists.before, heads, rooms or lists.kept, strict=True):
            low = rice_parameter(n, k) if lists.index == "rice" and k else 0
            lines.append([k, begins[0], begins[1], low, head, begins[2], before, 0])
            begins = [a + b for a, b in zip(begins, (room, block_count(k, BLOCK), before), strict=True)]
        programs = host_int64([block_count(k, TILE) for k in lists.kept])
        self.before = lists.before
        fixed = host_int64(heads) + host_int64(self.before)
        self.lists, self.fixed, self.spans, self.programs = carry_together(
            (host_int64(lines), fixed, spans_of(programs), pair_programs(programs)), device
        )
        self.total, self.blocks, _ = begins
        self.steps, self.delta = max(lists.kept).bit_length(), lists.index == "delta"

    @staticmethod
    def of(many: TensorList, lists: GapLists) -> GapTable:
        """The table of a bucket, which is made once."""
        return many.once((GapTable, lists), lambda: GapTable(many.sizes, many.device, lists))


@dataclass(frozen=True)
class Laid:
    """The written lists. fields uint8 ``[F]``; gaps int64 ``[K]``; ends, widths: as :func:`_lay` has them."""

    fields: Tensor
    gaps: Tensor
    ends: Tensor
    widths: Tensor | None


class _GapPlacesThere:
    """Positions of wires, and the programs that write and read them, on the device: one copy for each step.

    where: int64 ``[T]``, the byte where each wire begins. own: int64 ``[T]``, bytes of the codes that are written. rooms:
    int64 ``[W, T]``, of those that are read. written, read, spans: the programs.
    """

    def __init__(self, places: GapPlaces, many: TensorList):
        widths, before = host_int64(places.widths), host_int64(places.lists.before)
        rooms, own = widths - before, widths[places.own]
        read = tiles_to_read(rooms.amax(dim=0), places.lists)
        self.where, self.own, self.rooms, self.spans, self.written, self.read = carry_together(
            (host_int64(places.begins) + wires.HEADER, own - before, rooms, spans_of(read),
             pair_programs(-(-own // TILE)), pair_programs(read)),
            many.device,
        )  # fmt: skip

    @staticmethod
    def of(places: GapPlaces, many: TensorList) -> _GapPlacesThere:
        """The device's copy of these places, which is made once."""
        return places.once(lambda: _GapPlacesThere(places, many))


def tiles_to_read(rooms: Tensor, lists: GapLists) -> Tensor:
    """int64 ``[rows]``: how many programs read the codes of these lists, which have ``rooms [rows]`` bytes at most."""
    if lists.index == "rice":
        return -(-8 * (rooms - 1).clamp_min(0) // TILE)
    return -(-host_int64(lists.kept) // TILE)


def choose_listed_many(index: Tensor, fields: Tensor, finite: Tensor, many: TensorList, lists: GapLists) -> Chosen:
    widths, laid = lay_lists(index, fields, GapTable.of(many, lists))
    return Chosen(widths, finite, laid)


def lay_lists(index: Tensor, fields: Tensor, table: GapTable) -> tuple[Tensor, Laid]:
    """(int64 ``[T]``: how long the wires are of lists in ``index [K]`` int64, and of ``fields [F]`` uint8; what is written)"""
    programs, delta = table.programs, table.delta
    counts, gaps = index.new_empty(1, len(programs), dtype=torch.int32), torch.empty_like(index)
    launch(_measure, (len(programs),), programs, table.lists, index, counts, DELTA=delta, TILE=TILE)
    begins, total = scan(counts, table.spans)
    ends = index.new_empty(table.blocks if delta else table.total)
    widths = torch.empty_like(ends) if delta else None
    launch(_lay, (len(programs),), programs, table.lists, index, begins, gaps, ends, widths, DELTA=delta, TILE=TILE)
    bytes_of = total[0].long()
    if not delta:
        bytes_of = (bytes_of + table.lists[:, 0] + 7) // 8
    return table.fixed + bytes_of, Laid(fields, gaps, ends, widths)


def write_gap_pairs_many(message: Tensor, many: TensorList, code: GapPairs, chosen: Chosen, places: GapPlaces) -> None:
    layout = _GapPlacesThere.of(places, many)
    write_laid(message, GapTable.of(many, places.lists), layout.where, layout.own, layout.written, chosen.notes)


def write_laid(message: Tensor, table: GapTable, where: Tensor, own: Tensor, tiles: Tensor, laid: Laid) -> None:
    """Writes wires into ``message [s]`` uint8, ``where [T]`` they begin, whose codes have ``own [T]`` bytes. ``tiles
    [programs, 2]``: of 1,024 bytes.
    """
    lists = table.lists.clone()
    lists[:, 7] = where
    launch(_write, (len(tiles),), tiles, lists, own, laid.fields, laid.gaps, laid.ends, laid.widths, message, table.steps,
           DELTA=table.delta, TILE=TILE)  # fmt: skip


def sum_gap_pairs_many(rows: Tensor, many: TensorList, code: GapPairs, places: GapPlaces, weight: float) -> Tensor:
    table, layout, marks = GapTable.of(many, places.lists), _GapPlacesThere.of(places, many), Marks(rows, len(many))
    lists, add = table.lists.clone(), False
    lists[:, 7] = layout.where
    for part, rooms in zip(rows.split(AT_ONCE), layout.rooms.split(AT_ONCE), strict=True):
        index = read_lists(part, rooms, many, table, layout.read, layout.spans, lists, marks.clean)
        sum_tables(part, many, lists, index, table.steps, weight, marks, code.narrow, each=False, add=add,
                   grid=code.grid)  # fmt: skip
        add = True
    return many.all_of(marks.clean)


def read_lists(
    rows: Tensor, rooms: Tensor, many: TensorList, table: GapTable, tiles: Tensor, spans: Tensor, lists: Tensor, marks: Tensor,
    look: Callable[[Tensor, Tensor], None] | None = None,
) -> Tensor:  # fmt: skip
    """``[W, K]`` int64: the lists in ``rows [W, s]`` uint8, whose codes have ``rooms [W, T]`` bytes, side by side. ``marks
    [T]`` are left at those that no sender writes. ``tiles [programs, 2]`` read them, ``spans [T, 2]`` says whose these are.
    ``look`` is shown what says where codes end: the bytes of all blocks, int32 ``[W, T]``, and what :func:`_place` leaves.
    """
    W, K, programs = len(rows), table.total, len(tiles)
    planes, delta = 1 if table.delta else 2, table.delta
    index = many.table.new_empty(W, K)
    counts = many.table.new_empty(planes * W, programs, dtype=torch.int32)
    where = many.table, tiles, lists, rooms, rows
    how: dict[str, Any] = {"DELTA": delta, "TILE": TILE}
    launch(_count, (programs, W), *where, counts, marks, rows.stride(0), len(many), W * programs, **how)
    begins, total = scan(counts, spans)
    sums = torch.empty_like(begins) if delta else begins[W:]
    launch(_place, (programs, W), *where, begins, total, sums, index, marks, rows.stride(0), len(many), K, **how)
    if look is not None:
        look(total, index)
    if delta:
        sums = scan(sums, spans)[0]
    launch(_finish, (programs, W), *where, begins, sums, index, marks, rows.stride(0), len(many), K, **how)
    return index
