"""Index lists as Triton kernels: codes are written byte by byte; which bits are set is counted, scanned and written down.

Bits that are set ascend with the list: a program finds those of its bytes by bisection, and no two write the same byte. Which
code of :data:`grace.kernels.index_codes.fixed.FIXED` it is, a kernel finds out when it runs: each row of a bucket has its own.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.host import host_int64, to_device
from grace.compute.launching import TILE, Marks, Wires, launch
from grace.kernels.blocks import block_count
from grace.kernels.index_codes.fixed import (
    NOT_INCREASING,
    OUT_OF_RANGE,
    WRONG_BITS,
    PlaceLists,
    check_width,
    explain,
    layout,
)
from grace.kernels.packing import packed_bytes
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.triton import tile_of, wire_of
from grace.kernels.triton import mark_if
from grace.kernels.triton.bit_streams import bits_set, load_bits, load_field, pack_byte, reaching, scan

LIST_BITS = 2048  # of a program that looks for those that are set, or fields of one that reads them


@triton.jit
def code_of(lists, task):
    """The table's entry for a row's list: (k, where it begins among those of all rows, which code, how many low bits are
    packed, their bytes, all bytes of the code, those of the wire before it). Code 3: there is no list, but all n values.
    """
    at = lists + 8 * task
    k, first, number, low = tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3)
    return k, first, number, low, tl.load(at + 4), tl.load(at + 5), tl.load(at + 6)


@triton.jit
def code_byte(index, start, k, number, low, low_bytes, size, TILE: tl.constexpr):
    """int32 ``[TILE]``: bytes of the code of k indices, which are ascending, from ``start`` on; 0 before the first."""
    lane = tl.arange(0, TILE)
    byte = tl.zeros((TILE,), tl.int32)
    if (low > 0) & (start < tl.minimum(low_bytes, size)):  # all of a raw code
        o = start + lane
        packed = pack_byte(index, tl.maximum(o, 0), k, low).to(tl.int32)
        byte = tl.where((o >= 0) & (o < low_bytes), packed, 0)
    if (number > 0) & (start + TILE > low_bytes) & (start < size) & (low_bytes < size):
        byte |= _bits_of(index, start - low_bytes, k, number, low, TILE)
    return byte


@triton.jit
def _bits_of(index, start, k, number, low, TILE: tl.constexpr):
    """int32 ``[TILE]``: bytes from ``start`` on of which the list says what is set; 0 before the first.

    A program first finds which part of the list its bytes need; there it counts in 32 bits.
    """
    raised = (number == 2).to(tl.int64)
    first = reaching(index, 8 * start, k, low, raised)
    count = (reaching(index, 8 * (start + TILE), k, low, raised) - first).to(tl.int32)
    index += first
    origin = 8 * start - first * raised  # of what the part's numbers are, less their places in it
    turn = raised.to(tl.int32)
    bit = 8 * tl.arange(0, TILE)
    left = tl.zeros((TILE,), tl.int32)
    right = left + count
    size = count
    while size > 0:
        middle = (left + right) >> 1
        open_ = left < right
        own = ((tl.load(index + middle, open_, 0) >> low) - origin).to(tl.int32) + middle * turn
        below = open_ & (own < bit)
        right = tl.where(open_ & (own >= bit), middle, right)
        left = tl.where(below, middle + 1, left)
        size = size >> 1
    byte = tl.zeros((TILE,), tl.int32)
    for t in tl.static_range(0, 8):
        j = left + t
        own = ((tl.load(index + j, j < count, 0) >> low) - origin).to(tl.int32) + j * turn - bit
        byte |= tl.where((j < count) & (own < 8), 1 << tl.minimum(tl.maximum(own, 0), 7), 0)
    return byte


@triton.jit(do_not_specialize=["w", "k", "number", "low", "low_bytes", "size"])
def _write(
    table, programs, lists, index, wire, w, k, number, low, low_bytes, size,
    MANY: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    if MANY:
        row, tile = tile_of(programs)
        place, _n = wire_of(table, row)
        k, first, number, low, low_bytes, size, before = code_of(lists, row)
        at = wire + place + before
    else:
        row = tl.program_id(1).to(tl.int64)
        tile = tl.program_id(0).to(tl.int64)
        first, at = row * k, wire + row * w
        k, number, low = tile - tile + k, tile - tile + number, tile - tile + low
    byte = code_byte(index + first, tile * TILE, k, number, low, low_bytes, size, TILE)
    o = tile * TILE + tl.arange(0, TILE)
    tl.store(at + o, byte.to(tl.uint8), o < size)


@triton.jit
def place_in(lists, task):
    """Offset of the values in bytes from the place of a row's wire."""
    return tl.load(lists + 8 * task + 7)


@triton.jit
def _list_at(
    table, programs, lists, wires, b, plane, tiles, stride, row_stride, n, k, number, low, low_bytes, size,
    MANY: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """The input of one program: (its row, which of the row's tiles, which of all tiles, which of all lists, where its code
    begins, and where it goes in the output, n, and of its code k, which it is, how many low bits are packed, their bytes,
    all bytes). EACH: each wire has a table of its own, one behind the other.
    """
    other = tl.program_id(1).to(tl.int64)
    this = other * tiles + tl.program_id(0)
    if MANY:
        row, tile = tile_of(programs)
        place, n = wire_of(table, row)
        of = row
        if EACH:
            of = other * b + row
        k, first, number, low, low_bytes, size, before = code_of(lists, of)
        base = wires + other * stride + place + place_in(lists, of) + before
        first += other * plane
        other = other * b + row
    else:
        tile = tl.program_id(0).to(tl.int64)
        row = other % b
        base = wires + other // b * stride + row * row_stride
        first = other * plane
        n, k, number, low = tile - tile + n, tile - tile + k, tile - tile + number, tile - tile + low
        low_bytes, size = tile - tile + low_bytes, tile - tile + size
    return row, tile, this, other, base, first, n, k, number, low, low_bytes, size


@triton.jit
def bit_of(at, i, inside):
    """int32: bits i."""
    return (tl.load(at + i // 8, inside, 0).to(tl.int32) >> (i % 8).to(tl.int32)) & 1


@triton.jit(
    do_not_specialize=["b", "plane", "tiles", "stride", "row_stride", "k", "number", "low", "low_bytes", "size"]
)
def _count(
    table, programs, lists, wires, counts, b, plane, tiles, stride, row_stride, n, k, number, low, low_bytes, size,
    MANY: tl.constexpr, EACH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Counts the bits of each tile that are set; none of a raw code."""
    _row, tile, this, _other, base, _first, n, k, number, low, low_bytes, size = _list_at(
        table, programs, lists, wires, b, plane, tiles, stride, row_stride,
        n, k, number, low, low_bytes, size, MANY, EACH,
    )  # fmt: skip
    byte, _lane, _left = _bytes_at(base, tile, low_bytes, size, TILE)
    tl.store(counts + this, tl.sum(bits_set(byte), 0))


@triton.jit
def _bytes_at(base, tile, low_bytes, size, TILE: tl.constexpr):
    """(int32 ``[TILE / 8]``: the bytes that say which bits of a tile are set, 0 behind the last; likewise, which bytes of the
    tile they are; int32: how many lie in it)
    """
    first = tile * (TILE // 8)
    lane = tl.arange(0, TILE // 8)
    left = tl.minimum(tl.maximum(size - low_bytes - first, 0), TILE // 8).to(tl.int32)
    return tl.load(base + low_bytes + first + lane, lane < left, 0).to(tl.int32), lane, left


@triton.jit(
    do_not_specialize=["b", "plane", "tiles", "stride", "row_stride", "k", "number", "low", "low_bytes", "size"]
)
def _read(
    table, programs, lists, wires, begins, total, index, marks, b, plane, tiles, stride, row_stride,
    n, k, number, low, low_bytes, size, MANY: tl.constexpr, EACH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The lists, kept below n. Marks one that has not k bits set, one that does not increase strictly, and one that leaves
    [0, n); MANY: a mark for each row, whatever it is.
    """
    row, tile, this, other, base, first, n, k, number, low, low_bytes, size = _list_at(
        table, programs, lists, wires, b, plane, tiles, stride, row_stride,
        n, k, number, low, low_bytes, size, MANY, EACH,
    )  # fmt: skip
    order, outside = marks + 1, marks + 2
    if MANY:
        marks = marks + row
        order, outside = marks, marks
    index += first
    if number == 0:
        _read_fields(index, order, outside, base, tile, n, k, low, low_bytes, TILE)
    else:
        tl.store(marks, 0, (tile == 0) & (number < 3) & (tl.load(total + other) != k))
        if tile * (TILE // 8) < size - low_bytes:
            begin = tl.load(begins + this).to(tl.int64)
            _read_bits(index, order, outside, base, begin, tile, n, k, number, low, low_bytes, size, TILE)


@triton.jit
def _read_fields(index, order, outside, base, tile, n, k, low, low_bytes, TILE: tl.constexpr):
    """A tile of a raw code."""
    for begin in range(0, TILE, TILE // 4):
        j = tile * TILE + begin + tl.arange(0, TILE // 4)
        keep = j < k
        place = load_bits(base, j, keep, low_bytes, low)
        follows = keep & (j > 0)
        mark_if(order, follows & (place <= load_bits(base, j - 1, follows, low_bytes, low)))
        mark_if(outside, keep & (place >= n))
        tl.store(index + j, tl.minimum(place, n - 1), keep)


@triton.jit
def _read_bits(index, order, outside, base, begin, tile, n, k, number, low, low_bytes, size, TILE: tl.constexpr):
    """Indices of the bits that are set in a tile; the first has the place ``begin`` in the list. Counts within the tile
    have 32 bits.
    """
    byte, lane, left = _bytes_at(base, tile, low_bytes, size, TILE)
    at = base + low_bytes + tile * (TILE // 8) + lane
    last = (
        tl.load(at - 1, (lane < left) & (tile * (TILE // 8) + lane > 0), 0).to(tl.int32) >> 7
    )  # the bit before a byte
    own = bits_set(byte)
    column = tl.arange(0, 8)[None, :]
    j = (tl.cumsum(own, 0) - own)[:, None] + bits_set(byte[:, None] & ((1 << column) - 1))
    room = tl.minimum(k - begin, TILE).to(tl.int32)
    keep = (((byte[:, None] >> column) & 1) > 0) & (j < room)
    turn = (number == 2).to(tl.int32)
    follows = keep & (((((byte << 1) | last)[:, None] >> column) & turn) > 0)  # the same upper bits
    field = tl.zeros(j.shape, tl.int32)
    former = tl.zeros(j.shape, tl.int32)
    bits = low.to(tl.int32)
    if low > 0:
        start = begin * low
        bit = (start & 7).to(tl.int32) + j * bits
        width = tl.minimum(low_bytes - (start >> 3), 0x7FFFFFFF).to(tl.int32)
        field = load_field(base + (start >> 3), bit, keep, width, bits).to(tl.int32)
        former = load_field(base + (start >> 3), bit - bits, follows, width, bits).to(tl.int32)
    origin = tile * TILE - begin * turn
    beyond = tl.maximum(tl.minimum(((n - 1) >> low) - origin, TILE), -TILE).to(tl.int32)
    upper = 8 * lane[:, None] + column - j * turn  # from origin on
    final = (n - 1).to(tl.int32)
    place = tl.where(upper > beyond, final, ((upper + origin.to(tl.int32)) << bits) | field)
    disordered = follows & (field <= former)
    away = keep & ((upper > beyond) | (place > final))
    if tl.max(tl.reshape((disordered | away).to(tl.int32), (TILE,)), 0) > 0:
        mark_if(order, disordered)
        mark_if(outside, away)
    tl.store(index + begin + j, tl.minimum(place, final).to(tl.int64), keep)


@triton.jit(do_not_specialize=["k"])
def _check(index, marks, n, k, TILE: tl.constexpr):
    """Marks a list that does not increase strictly, and one that leaves [0, n)."""
    row = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    place = tl.load(index + row * k + j, j < k, 0)
    more = j + 1 < k
    mark_if(marks, more & (tl.load(index + row * k + j + 1, more, 0) <= place))
    mark_if(marks + 1, (place < 0) | (place >= n))


def encode_indices(index: Tensor, n: int, code: str) -> Any:
    if index.dtype is not torch.int64:
        return NotImplemented
    index = index.contiguous()
    b, k = index.shape
    _refuse_bad(index, n)
    wire = torch.empty(b, layout(n, k, code).size, dtype=torch.uint8, device=index.device)
    write_lists(index, wire, n, code)
    return wire


def decode_indices(packed: Tensor, n: int, k: int, code: str) -> Any:
    check_width(packed, n, k, code)
    if packed.dtype is not torch.uint8:
        return NotImplemented
    if packed.shape[1] > 1 and packed.stride(1) != 1:
        packed = packed.contiguous()
    return read_lists(Wires(packed, 1, 0, packed.stride(0)), 0, n, k, code)[0]


def write_lists(index: Tensor, wire: Tensor, n: int, code: str) -> None:
    """The code of lists ``[b, k]`` int64, which are legal, into ``wire [b, w]``."""
    (b, k), (number, low, size) = index.shape, layout(n, index.shape[1], code)
    launch(_write, (block_count(size, TILE), b), None, None, None, index, wire, wire.shape[1], k, number, low,
           packed_bytes(k, low), size, MANY=False, TILE=TILE)  # fmt: skip


def read_lists(run: Wires, at: int, n: int, k: int, code: str) -> Tensor:
    """``[count, b, k]`` int64: the lists whose code begins at byte ``at`` of each wire of a run.

    Raises:
        PayloadError: bytes that are not such a list; on an accelerator that is told later, and the list stays in [0, n).
    """
    number, low, size = layout(n, k, code)
    b, low_bytes = run.first.shape[0], packed_bytes(k, low)
    lists = run.count * b
    index = torch.zeros(run.count, b, k, dtype=torch.int64, device=run.first.device)
    if k == 0 or lists == 0:
        return index
    tiles, marks = block_count(k if number == 0 else 8 * (size - low_bytes), LIST_BITS), Marks(index, 3)
    where = b, k, tiles, run.stride, run.row, n, k, number, low, low_bytes, size
    begins = total = None
    if number != 0:
        counts = index.new_empty(lists, tiles, dtype=torch.int32)
        launch(_count, (tiles, lists), None, None, None, run.first[:, at:], counts, *where, MANY=False,
               EACH=False, TILE=LIST_BITS)  # fmt: skip
        begins, total = scan(counts)
    launch(_read, (tiles, lists), None, None, None, run.first[:, at:], begins, total, index, marks.clean, *where,
           MANY=False, EACH=False, TILE=LIST_BITS, num_warps=8)  # fmt: skip
    for which, why in enumerate((WRONG_BITS, NOT_INCREASING, OUT_OF_RANGE)):
        marks.refuse(which, partial(explain, why, n, k))
    return index


class ListTable:
    """Positions of the lists of a bucket's tensors in their wires, for kernels.

    Args:
        many: the tensors. lists: theirs.

    lists: int64 ``[T b, 8]`` on the device. total: K, the sum of k. steps: bits of the largest k. widths: bytes of each row's
    wire. sizes: of its code.
    """

    def __init__(self, many: TensorList, lists: PlaceLists):
        lines, begin = list[list[int]](), 0
        for n, k, code, before in zip(many.sizes, lists.kept, lists.codes, lists.before, strict=True):
            number, low, size = layout(n, k, code)
            lines.append([k, begin, number, low, packed_bytes(k, low), size, before, 0])
            begin += k
        self.total, self.steps, self.sizes = begin, max(lists.kept).bit_length(), [line[5] for line in lines]
        self.widths = [line[6] + line[5] for line in lines]
        self.lists = to_device(host_int64(lines), many.device)
        read = [k if number == 0 else 8 * (size - packed) for k, _, number, _, packed, size, _, _ in lines]
        counts = [block_count(bits, LIST_BITS) for bits in read]
        self._tiles = many.pairs((ListTable, self), lambda: counts)
        self._spans = many.spans((ListTable, self), lambda: counts)

    @staticmethod
    def of(many: TensorList, lists: PlaceLists) -> ListTable:
        """The table of a bucket, which is made once."""
        return many.once((ListTable, lists), lambda: ListTable(many, lists))

    def read(self, rows: Tensor, many: TensorList, marks: Tensor) -> Tensor:
        """``[W, K]`` int64: the lists in ``rows [W, s]`` uint8, side by side. ``marks [T b]`` are left at those that no sender
        writes.
        """
        return read_tables(rows, many, self.lists, self.total, self._tiles, self._spans, marks, each=False)


def read_tables(
    rows: Tensor,
    many: TensorList,
    lists: Tensor,
    plane: int,
    tiles: Tensor,
    spans: Tensor,
    marks: Tensor,
    *,
    each: bool,
) -> Tensor:
    """``[W, plane]`` int64: the lists in ``rows [W, s]`` uint8, where a table says; with ``each`` of W tables, one behind the
    other. ``tiles``, ``spans``: the programs that read. ``marks [T b]`` are left at the lists that no sender writes.
    """
    W, programs = len(rows), len(tiles)
    index, counts = many.table.new_empty(W, plane), many.table.new_empty(W, programs, dtype=torch.int32)
    where = many.table, tiles, lists, rows
    sizes = (len(many), plane, programs, rows.stride(0), *[None] * 7)
    launch(_count, (programs, W), *where, counts, *sizes, MANY=True, EACH=each, TILE=LIST_BITS)
    begins, total = scan(counts, spans)
    launch(_read, (programs, W), *where, begins, total, index, marks, *sizes, MANY=True, EACH=each, TILE=LIST_BITS,
           num_warps=8)  # fmt: skip
    return index


def encode_indices_many(message: Tensor, many: TensorList, lists: PlaceLists, index: Tensor) -> None:
    table = ListTable.of(many, lists)
    tiles = many.pairs((ListTable, lists, "code"), lambda: [block_count(size, TILE) for size in table.sizes])
    launch(_write, (tiles.shape[0],), many.table, tiles, table.lists, index, message, *[None] * 6, MANY=True,
           TILE=TILE)  # fmt: skip


def decode_indices_many(rows: Tensor, many: TensorList, lists: PlaceLists) -> tuple[Tensor, Tensor]:
    marks = Marks(rows, len(many))
    return ListTable.of(many, lists).read(rows, many, marks.clean), many.all_of(marks.clean)


def _refuse_bad(index: Tensor, n: int) -> None:
    """Refuses lists ``[b, k]`` of which one does not increase strictly, or leaves [0, n)."""
    (b, k), marks = index.shape, Marks(index, 2)
    launch(_check, (block_count(k, TILE), b), index, marks.clean, n, k, TILE=TILE)
    marks.refuse(0, lambda: explain(NOT_INCREASING, n, k))
    marks.refuse(1, lambda: explain(OUT_OF_RANGE, n, k))
