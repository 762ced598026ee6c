"""Samples as Triton kernels: units are found, then numbers are drawn and counted, and drawn again where they are written.

Each wire has two lists. Their tables lie side by side, of what is certain to be kept, then of what is drawn, ``[2, T, 8]`` as
:class:`grace.kernels.variable_sparse.triton.Lists` has them, and so do their places in memory, ``[K]`` for both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace import wire as wires
from grace.compute.host import host_int64
from grace.compute.launching import TILE, Marks, launch, signed
from grace.kernels.blocks import block_count
from grace.kernels.index_codes.fixed.triton import LIST_BITS, code_byte, code_of, read_tables
from grace.kernels.multi_tensor import clear_many
from grace.kernels.sampling import Budgets, Chances, DrawnCode, DrawnPlaces
from grace.kernels.sampling.parts import COUNTS, SIGNS
from grace.kernels.sampling.triton.gapped import GapNotes, choose_gapped, sum_gapped, write_gapped
from grace.kernels.sampling.triton.search import LANES, PIECE, ROWS, find_units, joined, numbers_at
from grace.kernels.sampling.units import unit_of_budget
from grace.kernels.selection.triton.candidates import MOST, Look, measure_many
from grace.kernels.sparse.triton import AT_ONCE, sum_tables
from grace.kernels.sparse_codes.triton import front_at
from grace.kernels.tensor_list import TensorList, carry_together, pair_programs, spans_of
from grace.kernels.tensor_list.triton import key_of, tile_of, wire_of
from grace.kernels.triton import count_at, halves, load_number
from grace.kernels.triton.bit_streams import pack_byte, scan
from grace.kernels.variable_sparse.parts import Chosen
from grace.kernels.variable_sparse.triton import lay_out, store_list
from grace.random.triton import threefry

_PART = 1024  # numbers that a program writes at a time


@triton.jit
def _uniform_at(key0, key1, step, i):
    """float32 in (0, 1]: as :func:`grace.kernels.sampling.wire.uniform32`, numbers i of a stream."""
    low, high = threefry(key0, key1, (i >> 1).to(tl.uint32), step)
    word = tl.where((i & 1) == 0, low, high).to(tl.int32, bitcast=True)
    return (word.to(tl.float32) + 0.5) * 2.3283064365386963e-10 + (word < 0).to(tl.float32)


@triton.jit
def _chance(p, unit, inside, u):
    """(whether a number is certain to be kept, whether another is drawn, float32: with which probability those others are)"""
    size = tl.abs(p)
    sure = inside & (size >= unit)
    chance = tl.where(inside & (sure == 0), tl.div_rn(size, tl.zeros_like(size) + unit), 0.0)
    return sure, u < chance, chance


@triton.jit(do_not_specialize=["step"])
def _weigh(
    table, programs, heads, like, units, sums, counts, plane, turns, step, EVEN: tl.constexpr, ROWS: tl.constexpr
):
    """Sums of each piece: ``counts [2, plane]``, how many numbers are certain to be kept, and how many are drawn;
    ``sums [plane]``, how many of the latter are expected.
    """
    row, tile = tile_of(programs)
    x, n, head, pieces = numbers_at(table, heads, like, row, EVEN)
    key0, key1 = key_of(table, row)
    unit = tl.load(units + row)
    j = tile * ROWS + tl.arange(0, ROWS)
    left = tl.minimum(tl.maximum(n - j * 4096, 0), 4096).to(tl.int32)[:, None]
    lane = tl.arange(0, 16)[None, :]
    expected = tl.zeros((ROWS, 16), tl.float64)
    certain = tl.zeros((ROWS, 16), tl.int32)
    drawn = tl.zeros((ROWS, 16), tl.int32)
    for t in range(turns):
        i = (j * 4096)[:, None] + (lane + 16 * t)
        inside = lane + 16 * t < left
        p = load_number(x, i, inside)
        sure, taken, chance = _chance(p, unit, inside, _uniform_at(key0, key1, step, i))
        expected += chance.to(tl.float64)
        certain += sure.to(tl.int32)
        drawn += taken.to(tl.int32)
    at = head + j
    tl.store(sums + at, halves(expected, ROWS), j < pieces)
    tl.store(counts + at, tl.sum(certain, 1), j < pieces)
    tl.store(counts + plane + at, tl.sum(drawn, 1), j < pieces)


@triton.jit
def expected_of(sums, pieces, n, k1):
    """int64: how many numbers are expected to be drawn, at most those that are not certain to be kept."""
    total = joined(sums, pieces)
    whole = total.to(tl.int64)
    return tl.minimum(n - k1, whole + (whole.to(tl.float64) < total).to(tl.int64))


@triton.jit
def _tail_bytes(k2):
    """Bytes of the unit and k2 signs, if there are any."""
    return tl.where(k2 > 0, 4 + (k2 + 7) // 8, 0)


@triton.jit
def _store_lists(first, second, n, k1, k2, dense, CODE: tl.constexpr):
    """The lines of both tables, but for where lists begin and where wires are: the bytes of the wire. What lies before the
    second list is counted from the unit on.
    """
    number1, low1, low_bytes1, size1 = lay_out(n, k1, CODE)
    number2, low2, low_bytes2, size2 = lay_out(n, k2, CODE)
    size1, tail = tl.where(dense, 0, size1), _tail_bytes(k2)
    store_list(first, k1, tl.where(dense, 3, number1), low1, low_bytes1, size1, 4 * k1 + tail)
    store_list(second, k2, number2, low2, low_bytes2, size2, tail + size1)
    return 8 + 4 * k1 + tail + size1 + size2


@triton.jit
def _plan(table, heads, sums, total, lists, widths, rows, CODE: tl.constexpr):
    """The tables of what is sent, of ``total [2, rows]`` numbers of each tensor, and the widths of the wires."""
    row = tl.program_id(0).to(tl.int64)
    _place, n = wire_of(table, row)
    k1, k2 = tl.load(total + row).to(tl.int64), tl.load(total + rows + row).to(tl.int64)
    expected = expected_of(sums + tl.load(heads + row), (n + 4095) // 4096, n, k1)
    _number, _low, _low_bytes, size1 = lay_out(n, k1, CODE)
    _number, _low, _low_bytes, size2 = lay_out(n, expected, CODE)
    dense = 4 * k1 + 4 + (expected + 7) // 8 + size1 + size2 >= 4 * n
    k1, k2 = tl.where(dense, n, k1), tl.where(dense, 0, k2)
    width = _store_lists(lists + 8 * row, lists + 8 * (rows + row), n, k1, k2, dense, CODE)
    tl.store(widths + row, width)


@triton.jit
def _expect(table, heads, sums, total, out):
    """``out [rows]`` int64: how many numbers are expected to be drawn, of ``total [rows]`` that are certain to be kept."""
    row = tl.program_id(0).to(tl.int64)
    _place, n = wire_of(table, row)
    k1 = tl.load(total + row).to(tl.int64)
    tl.store(out + row, expected_of(sums + tl.load(heads + row), (n + 4095) // 4096, n, k1))


@triton.jit(do_not_specialize=["step"])
def _emit(
    table, programs, heads, like, units, factors, lists, begins, plane, index, sent, signs, rows, step,
    KEEP_REST: tl.constexpr, EVEN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Writes places ``index [K]``, of what is certain to be kept what is sent, ``sent [K]``, and of what is drawn
    ``signs [K]``, 1 if it is positive; numbers become what that leaves out.
    """
    row, piece = tile_of(programs)
    x, n, head, _pieces = numbers_at(table, heads, like, row, EVEN)
    key0, key1 = key_of(table, row)
    unit, factor = tl.load(units + row), tl.load(factors + row)
    first, second = tl.load(lists + 8 * row + 1), tl.load(lists + 8 * (rows + row) + 1)
    dense = tl.load(lists + 8 * row + 2) == 3
    begin = first + tl.load(begins + head + piece)
    other = second + tl.load(begins + plane + head + piece)
    if dense:
        begin = first + piece * 4096
    lane = tl.arange(0, TILE)
    for t in range(0, 4096, TILE):
        i = piece * 4096 + t + lane
        p = load_number(x, i, i < n)
        sure, taken, _chances = _chance(p, unit, i < n, _uniform_at(key0, key1, step, i))
        sure, taken = tl.where(dense, i < n, sure), taken & (dense == 0)
        ones = sure.to(tl.int32)
        at = begin + tl.cumsum(ones, 0) - ones
        begin += tl.sum(ones, 0)
        tl.store(index + at, i, sure & (dense == 0))
        tl.store(sent + at, p * factor, sure)
        ones = taken.to(tl.int32)
        at = other + tl.cumsum(ones, 0) - ones
        other += tl.sum(ones, 0)
        tl.store(index + at, i, taken)
        tl.store(signs + at, (p > 0).to(tl.uint8), taken)
        if KEEP_REST:
            share = tl.where(sure, p * factor, tl.where(p > 0, unit * factor, unit * factor * -1.0))
            tl.store(x + i, p - share, sure | taken)


@triton.jit
def _write(programs, lists, index, sent, signs, units, factors, message, rows, where, sizes, TILE: tl.constexpr):
    """Wires of ``sizes [rows]`` bytes, which begin at ``where [rows]``."""
    row, tile = tile_of(programs)
    k1, first, number1, low1, low_bytes1, size1, before = code_of(lists, row)
    k2, second, number2, low2, low_bytes2, size2, _before = code_of(lists, rows + row)
    start = tile * TILE
    o = start + tl.arange(0, TILE)
    count = tl.where(o < 4, tl.where(number1 == 3, -1, k1), k2)
    byte = tl.where(o < 8, (count >> (8 * (o & 3))) & 0xFF, 0).to(tl.int32)
    if start < 8 + 4 * k1:
        valued = (o >= 8) & (o < 8 + 4 * k1)
        word = tl.load(sent + first + (o - 8) // 4, valued, 0.0).to(tl.int32, bitcast=True)
        byte = tl.where(valued, (word >> (8 * (o & 3)).to(tl.int32)) & 0xFF, byte)
    at = 8 + 4 * k1
    tail = _tail_bytes(k2)
    if (start < at + tail) & (start + TILE > at):
        scaled = (tl.load(units + row) * tl.load(factors + row)).to(tl.int32, bitcast=True)
        byte = tl.where((o >= at) & (o < at + tl.minimum(tail, 4)), (scaled >> (8 * (o & 3)).to(tl.int32)) & 0xFF, byte)
        packed = pack_byte(signs + second, tl.maximum(o - at - 4, 0), k2, 1).to(tl.int32)
        byte = tl.where((o >= at + 4) & (o < at + tail), packed, byte)
    at = 8 + before
    if (start < at + size1) & (start + TILE > at):
        byte |= code_byte(index + first, start - at, k1, number1, low1, low_bytes1, size1, TILE)
    at += size1
    if (start < at + size2) & (start + TILE > at):
        byte |= code_byte(index + second, start - at, k2, number2, low2, low_bytes2, size2, TILE)
    tl.store(message + tl.load(where + row) + o, byte.to(tl.uint8), o < tl.load(sizes + row))


@triton.jit(do_not_specialize=["stride"])
def _open(table, where, lists, wires, marks, stride, CODE: tl.constexpr):
    """The tables ``lists [W, 2, T, 8]`` of what the wires say, whose counts are read. A wire that is not as long as its counts
    say is marked, and says nothing. ``where [W, T, 3]``: the byte where a wire begins, its width, and where its lists go.
    """
    row, other, rows = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.num_programs(0)
    this = 3 * (other * rows + row)
    _place, n = wire_of(table, row)
    at, width, first = tl.load(where + this), tl.load(where + this + 1), tl.load(where + this + 2)
    base = wires + other * stride + at
    k1, k2 = count_at(base).to(tl.int64), count_at(base + 4).to(tl.int64)
    dense = ((k1 == -1) | (k1 == n)) & (k2 == 0)
    legal = dense | ((k1 >= 0) & (k2 >= 0) & (k1 + k2 <= n))
    k1, k2 = tl.where(legal, tl.where(dense, n, k1), 0), tl.where(legal, k2, 0)
    line = lists + 8 * (2 * other * rows + row)
    legal = legal & (_store_lists(line, line + 8 * rows, n, k1, k2, dense, CODE) == width)
    if legal & (k2 > 0):
        _word, legal = front_at(base + 8 + 4 * k1, 1)
    k1, k2 = tl.where(legal, k1, 0), tl.where(legal, k2, 0)
    _store_lists(line, line + 8 * rows, n, k1, k2, dense & legal, CODE)
    tl.store(marks + row, 0, legal == 0)
    tl.store(line + 1, first)
    tl.store(line + 8 * rows + 1, first + tl.where(dense, 0, k1))
    tl.store(line + 7, at + 8)
    tl.store(line + 8 * rows + 7, at + 8 + 4 * k1)


@dataclass(frozen=True)
class _Drawn:
    """The numbers drawn, to be sent. numbers: the tensors' sums with the memories. units, factors: float32 ``[T]``. begins:
    int32 ``[2, pieces]``, how many numbers come before each piece in its tensor. lists: int64 ``[2, T, 8]``; or what else
    is to be written, if places travel as gaps. step: whose numbers are drawn.
    """

    numbers: TensorList
    units: Tensor
    factors: Tensor
    begins: Tensor
    step: int
    lists: Tensor | GapNotes | None = None

    def emit(self, lists: Tensor, room: int, keep_rest: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Places int64 ``[K]``, what is sent of those that are certain to be kept, float32 ``[K]``, and of others the signs,
        uint8 ``[K]``; in ``room`` for all of them, where the tables ``lists [2, T, 8]`` say.
        """
        many, device = self.numbers, self.numbers.device
        index, sent = lists.new_empty(room), torch.empty(room, device=device, dtype=torch.float32)
        signs, tiles = torch.empty(room, dtype=torch.uint8, device=device), many.tiles(PIECE)
        launch(_emit, (len(tiles),), many.table, tiles, many.heads(PIECE), many.like, self.units, self.factors, lists,
               self.begins, self.begins.shape[1], index, sent, signs, len(many), signed(self.step), KEEP_REST=keep_rest,
               EVEN=many.even, TILE=_PART)  # fmt: skip
        return index, sent, signs

    def write(
        self, tiles: Tensor, lists: Tensor, index: Tensor, sent: Tensor, signs: Tensor, message: Tensor, where: Tensor,
        sizes: Tensor,
    ) -> None:  # fmt: skip
        """Writes wires of ``sizes [T]`` bytes into ``message [s]`` uint8, where they begin, ``where [T]``. ``tiles
        [programs, 2]``: of 1,024 bytes.
        """
        launch(_write, (len(tiles),), tiles, lists, index, sent, signs, self.units, self.factors, message,
               len(self.numbers), where, sizes, TILE=TILE)  # fmt: skip


class _DrawnPlacesThere:
    """Positions of wires, and the programs that write and read them, on the device: one copy for each step.

    where: int64 ``[W, T, 3]``, as :func:`_open` takes it. begins: int64 ``[T]``, where what is written begins among all.
    written, read, spans: the programs. plane: room for what a worker's lists hold.
    """

    def __init__(self, places: DrawnPlaces, many: TensorList):
        widths, rooms = host_int64(places.widths), torch.from_numpy(places.rooms)
        own = rooms[places.own]
        # A bitmap has n bits; raw lists have k fields; of the shortest Elias-Fano code at most 3 k bits are in unary.
        most = torch.maximum(host_int64(many.sizes), 3 * rooms) + 8
        read = (-(-torch.minimum(8 * (widths - COUNTS), most).amax(dim=0) // LIST_BITS)).repeat(2)
        at = (host_int64(places.begins) + wires.HEADER).expand_as(widths)
        parts = (
            torch.stack((at, widths, rooms.cumsum(1) - rooms), dim=2), own.cumsum(0) - own, spans_of(read),
            pair_programs(-(-widths[places.own] // TILE)), pair_programs(read),
        )  # fmt: skip
        self.where, self.begins, self.spans, self.written, self.read = carry_together(parts, many.device)
        self.plane = max(1, int(places.rooms.sum(axis=1).max()))

    @staticmethod
    def of(places: DrawnPlaces, many: TensorList) -> _DrawnPlacesThere:
        """The device's copy of these places, which is made once."""
        return places.once(lambda: _DrawnPlacesThere(places, many))


def choose_drawn_many(like: Tensor, many: TensorList, code: DrawnCode, chances: Chances | Budgets, step: int) -> Any:
    if max(many.sizes) > MOST:
        return NotImplemented
    finite = measure_many(Look.at_many(many), many, None)
    numbers = many.once("sums", lambda: TensorList(many.sizes, (), many.streams, many.device))
    numbers.point(many.rests or many.xs)
    clear_many(finite, numbers)
    units = _spend(numbers, chances) if isinstance(chances, Budgets) else find_units(numbers, chances)
    factors = many.numbers(("factors", chances), lambda: [chances.factor(n) for n in many.sizes], torch.float32)
    heads, tiles, plane = many.heads(PIECE), numbers.tiles(PIECE * ROWS), sum(many.counts(PIECE))
    sums = torch.empty(plane, dtype=torch.float64, device=many.device)
    counts = torch.empty(2, plane, dtype=torch.int32, device=many.device)
    turns = block_count(min(max(many.sizes), PIECE), LANES)
    launch(_weigh, (len(tiles),), numbers.table, tiles, heads, numbers.like, units, sums, counts, plane, turns, signed(step),
           EVEN=numbers.even, ROWS=ROWS)  # fmt: skip
    begins, total = scan(counts, many.spans(PIECE, lambda: many.counts(PIECE)))
    if code.counted.gaps:
        return _chosen_gapped(code.index, _Drawn(numbers, units, factors, begins, step), many, sums, total, finite)
    lists, widths = many.table.new_empty(2, len(many), 8), many.table.new_empty(len(many))
    launch(_plan, (len(many),), many.table, heads, sums, total, lists, widths, len(many), CODE=code.counted.number)
    return Chosen(widths, finite, _Drawn(numbers, units, factors, begins, step, lists))


def _chosen_gapped(index: str, drawn: _Drawn, many: TensorList, sums: Tensor, total: Tensor, finite: Tensor) -> Chosen:
    """As :func:`choose_drawn_many`, of what is drawn; the host is asked how many numbers that are."""
    expected = many.table.new_empty(len(many))
    launch(_expect, (len(many),), many.table, many.heads(PIECE), sums, total, expected)
    told = torch.cat((total.long(), expected[None])).tolist()  # the question

    def emit(lists: Tensor, room: int) -> tuple[Tensor, Tensor, Tensor]:
        return drawn.emit(lists, room, many.rests is not None)

    widths, notes = choose_gapped(many.sizes, index, told, many.device, emit, drawn.write)
    return Chosen(widths, finite, replace(drawn, lists=notes))


def _spend(many: TensorList, budgets: Budgets) -> Tensor:
    """float32 ``[T]``: the units that spend the budgets of several tensors, which torch sorts one after the other."""
    units, some = [], []
    for x in many.xs:
        a = x.view(-1).float().abs()
        units.append(unit_of_budget(a, budgets.count(a.numel())))
        some.append(a.any())
    limits = torch.finfo(torch.float32)
    units_of = torch.cat(units).clamp(limits.tiny, limits.max).float()
    return torch.where(torch.stack(some), units_of, limits.max)


def write_drawn_many(message: Tensor, many: TensorList, code: DrawnCode, chosen: Chosen, places: DrawnPlaces) -> Any:
    drawn, own = chosen.notes, places.own
    if not isinstance(drawn, _Drawn):  # wires that are made: some tensor was too large to choose from it here
        return NotImplemented
    if code.counted.gaps:
        return write_gapped(message, drawn.lists, places)
    lists, layout = drawn.lists, _DrawnPlacesThere.of(places, many)
    lists[:, :, 1] = layout.begins
    lists[1, :, 1] += torch.where(lists[0, :, 2] == 3, 0, lists[0, :, 0])
    index, sent, signs = drawn.emit(lists, int(places.rooms[own].sum()), many.rests is not None)
    begins, widths = layout.where[own, :, 0].contiguous(), layout.where[own, :, 1].contiguous()
    return drawn.write(layout.written, lists, index, sent, signs, message, begins, widths)


def sum_drawn_many(rows: Tensor, many: TensorList, code: DrawnCode, places: DrawnPlaces, weight: float) -> Tensor:
    if code.counted.gaps:
        return sum_gapped(rows, many, code.index, places, weight)
    layout, T, W = _DrawnPlacesThere.of(places, many), len(many), len(rows)
    marks, read = Marks(rows, T), Marks(rows, 2 * T)
    lists = many.table.new_empty(W, 2 * T, 8)
    launch(_open, (T, W), many.table, layout.where, lists, rows, marks.clean, rows.stride(0), CODE=code.counted.number)
    both = many.once("both", lambda: TensorList(many.sizes * 2, (), (), many.device))
    both.point(list(many.xs) * 2)
    for first in range(0, W, AT_ONCE // 2):
        part, tables = rows[first : first + AT_ONCE // 2], lists[first : first + AT_ONCE // 2]
        index = read_tables(part, both, tables, layout.plane, layout.read, layout.spans, read.clean, each=True)
        sum_tables(part, many, tables, index, max(many.sizes).bit_length(), weight, marks, False, each=True, add=first > 0,
                   codes=SIGNS, pairs=True)  # fmt: skip
    return marks.clean & read.clean.view(2, T).all(dim=0)
