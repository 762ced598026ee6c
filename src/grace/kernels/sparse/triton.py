"""Sparse wires as Triton kernels: written from a selection, and added up tile by tile, one wire after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE, Marks, check_rows, even_runs, launch, power_of_two
from grace.errors import PayloadError
from grace.flags.finite import Flag
from grace.kernels.blocks import block_count
from grace.kernels.index_codes.fixed import PlaceLists, check_list, layout
from grace.kernels.index_codes.fixed.triton import ListTable, code_byte, code_of, place_in, read_lists
from grace.kernels.packing import packed_bytes
from grace.kernels.selection.triton import take_topk, take_topk_many
from grace.kernels.sparse import DENSE, Pairs, ScaledCodes, TopKPairs, WirePart
from grace.kernels.sparse.parts import BAD_VALUES, check_parts
from grace.kernels.sparse_codes import Codes, Payload
from grace.kernels.sparse_codes.triton import coding, front_bytes_of, load_coded
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.triton import numbers_of, tensor_of, tile_of, wire_of
from grace.kernels.triton import load_digit, load_float, load_number, magnitude, mark_if, nearest_bfloat16, store_tile
from grace.kernels.triton.bit_streams import first_of_each, load_bits, pack_byte

_OWNED, AT_ONCE = 8192, 64  # numbers of the sum that a program owns; wires of a launch


@triton.jit(do_not_specialize=["w", "k", "number", "low", "low_bytes", "size"])
def _write(
    table, programs, lists, sent, index, wire, fronts, w, k, number, low, low_bytes, size,
    MANY: tl.constexpr, NARROW: tl.constexpr, KIND: tl.constexpr, MOST: tl.constexpr, BITS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The wires: the values of each row, as float32 or as the nearest bfloat16, or KIND: its front and codes; then the code of
    their places.
    """
    if MANY:
        row, tile = tile_of(programs)
        place, _n = wire_of(table, row)
        k, first, number, low, low_bytes, size, before = code_of(lists, row)
        at = wire + place + place_in(lists, row)
    else:
        row = tl.program_id(1).to(tl.int64)
        tile = tl.program_id(0).to(tl.int64)
        first, before = row * k, (4 - 2 * NARROW) * k
        at = wire + row * w
        k, number, low = tile - tile + k, tile - tile + number, tile - tile + low
    lane = tl.arange(0, TILE)
    start = tile * TILE - before
    byte = tl.zeros((TILE,), tl.int32)
    if start < 0:
        valued = start + lane < 0
        if KIND:
            o = tile * TILE + lane
            word = (tl.load(fronts + row) >> (tl.minimum(o, front_bytes_of(KIND) - 1) * 8)).to(tl.int32)
            packed = pack_byte(sent + first, tl.maximum(o - front_bytes_of(KIND), 0), k, BITS).to(tl.int32)
            byte = tl.where(valued, tl.where(o < front_bytes_of(KIND), word & 0xFF, packed), 0)
        else:
            value = tl.load(sent + first + tile * (TILE // (4 - 2 * NARROW)) + lane // (4 - 2 * NARROW), valued, 0.0)
            if NARROW:
                word = nearest_bfloat16(value).to(tl.int32, bitcast=True) >> 16
            else:
                word = value.to(tl.int32, bitcast=True)
            byte = tl.where(valued, (word >> (lane % (4 - 2 * NARROW) * 8)) & 0xFF, 0)
    if start + TILE > 0:
        byte |= code_byte(index + first, start, k, number, low, low_bytes, size, TILE)
    tl.store(at + tile * TILE + lane, byte.to(tl.uint8), start + lane < size)


@triton.jit
def _load_value(at, j, inside, NARROW: tl.constexpr):
    """(float32: values j of a wire; whether they are such as a sender writes)"""
    if NARROW:
        word = tl.load(at + 2 * j, inside, 0).to(tl.int32) << 16
        word |= tl.load(at + 2 * j + 1, inside, 0).to(tl.int32) << 24
        value = word.to(tl.float32, bitcast=True)
    else:
        value = load_float(at + 4 * j, inside)
    return value, magnitude(value) < 0x7F800000


@triton.jit
def _load_of_grid(at, j, inside, k, BITS: tl.constexpr, COUNT: tl.constexpr, STEP: tl.constexpr, UNIT: tl.constexpr):
    """As :func:`_load_value`, of values on a grid."""
    scale = load_float(at + j - j, inside)
    if BITS == 0:
        code, good = load_digit(at + 4, j, inside)
    else:
        code = load_bits(at + 4, j, inside, (k * BITS + 7) // 8, BITS)
        good = code >= 0
    number = (code * STEP - UNIT).to(tl.float32)
    good = good & (code < COUNT) & (scale >= 0) & (scale < float("inf"))
    return number * tl.div_rn(scale, tl.zeros_like(scale) + UNIT * 1.0), good


@triton.jit(do_not_specialize=["W", "plane", "stride", "row_stride", "weight", "k", "steps"])
def _sum_lists(
    table, programs, lists, wires, index, out, marks, b, W, plane, stride, row_stride, n, k, steps, weight,
    MANY: tl.constexpr, EACH: tl.constexpr, EVEN: tl.constexpr, ADD: tl.constexpr, NARROW: tl.constexpr, BITS: tl.constexpr,
    COUNT: tl.constexpr, STEP: tl.constexpr, UNIT: tl.constexpr, KIND: tl.constexpr, MOST: tl.constexpr, PAIRS: tl.constexpr,
    LISTS: tl.constexpr, OWNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """``out [b, n]``: a program owns OWNED numbers, and adds to them what W lists ``[W, b, k]`` say, in their order; ``plane =
    b k``. MANY: what ``[W, plane]`` say, those of all rows side by side. EACH: in W tables of b rows, one behind the other.

    Places that leave its part are left alone, whatever a list says. LISTS: the power of two that is at least W. UNIT: of the
    grid of values, which EACH does not have; 0: they are numbers, or KIND: with EACH, codes behind a front. PAIRS: with EACH,
    W counts lists, of which each wire has two, of numbers and of codes.
    """
    if MANY:
        row, tile = tile_of(programs)
        place, n = wire_of(table, row)
        out, start = numbers_of(table, row, out, EVEN)
        k, own, _number, _low, _low_bytes, _size, _before = code_of(lists, row)
        if EACH == 0:
            place += place_in(lists, row)
        wires = wires + place
        marks = marks + row
    else:
        row = tl.program_id(1).to(tl.int64)
        tile = tl.program_id(0).to(tl.int64)
        start, own = row * n, row * k
        wires = wires + row * row_stride
    out = out + start
    first = tile * OWNED
    if ADD == 0:
        for t in range(0, OWNED, TILE):
            i = first + t + tl.arange(0, TILE)
            store_tile(out + i, tl.zeros((TILE,), tl.float32), i < n, first + OWNED <= n)
        tl.debug_barrier()
    lane = tl.arange(0, LISTS)
    behind, dense = lane * 0, lane < 0  # where values begin; which wires have no list
    if EACH:
        of = lane.to(tl.int64) * b + row
        k, own = tl.load(lists + 8 * of, lane < W, 0), tl.load(lists + 8 * of + 1, lane < W, 0)
        dense = tl.load(lists + 8 * of + 2, lane < W, 0) == 3
        behind = tl.load(lists + 8 * of + 7, lane < W, 0)
    own = (lane >> PAIRS).to(tl.int64) * plane + own
    bound = first + tl.zeros((LISTS,), tl.int64)
    listed, far = (lane < W) & (dense == 0), tile - tile + stride  # W wires may have more than 2^31 bytes
    begins = tl.where(dense, bound, first_of_each(index + own, bound, k, steps, listed))
    ends = tl.minimum(bound + OWNED, n)
    ends = tl.where(dense, ends, first_of_each(index + own, bound + OWNED, k, steps, listed))
    for wire in range(W):
        this = lane == wire
        end = tl.sum(tl.where(this, ends, 0), 0)
        base = wires + (wire >> PAIRS) * far + tl.sum(tl.where(this, behind, 0), 0)
        theirs = index + tl.sum(tl.where(this, own, 0), 0)
        entire = tl.sum((this & dense).to(tl.int32), 0) > 0
        for begin in range(tl.sum(tl.where(this, begins, 0), 0), end, TILE):
            j = begin + tl.arange(0, TILE)
            i = tl.load(theirs + j, (j < end) & (entire == 0), -1)
            i = tl.where(entire, j, i)
            inside = (j < end) & (i >= first) & (i < first + OWNED) & (i < n)
            if UNIT:
                value, good = _load_of_grid(base, j, j < end, k, BITS, COUNT, STEP, UNIT)
            elif PAIRS:
                if wire % 2 == 0:
                    value, good = _load_value(base, j, j < end, NARROW)
                else:
                    value, good = load_coded(base, j, j < end, tl.sum(tl.where(this, k, 0), 0), KIND, MOST, BITS)
            elif KIND:
                value, good = load_coded(base, j, j < end, tl.sum(tl.where(this, k, 0), 0), KIND, MOST, BITS)
            else:
                value, good = _load_value(base, j, j < end, NARROW)
            mark_if(marks, (j < end) & (good == 0))
            tl.store(out + i, tl.load(out + i, inside, 0.0) + value * weight, inside)
        tl.debug_barrier()  # the next wire's numbers may be another thread's


@triton.jit(do_not_specialize=["k", "weight"])
def _add_part(wire, index, out, marks, n, k, weight, NARROW: tl.constexpr, LISTED: tl.constexpr, TILE: tl.constexpr):
    """Adds k values at the places of one list, or at the first k places; no two are the same."""
    j = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    value, good = _load_value(wire, j, j < k, NARROW)
    mark_if(marks, (j < k) & (good == 0))
    i = j
    if LISTED:
        i = tl.load(index + j, j < k, -1)
    inside = (j < k) & (i >= 0) & (i < n)
    tl.store(out + i, tl.load(out + i, inside, 0.0) + value * weight, inside)


def encode_topk(
    rows: Tensor, pairs: TopKPairs, memory: Tensor | None, rest: Tensor | None
) -> tuple[Tensor, Flag] | Any:
    taken = take_topk(rows, pairs.k, memory, rest, narrow=pairs.narrow)
    if taken is NotImplemented:
        return NotImplemented
    index, sent, finite = taken
    return _write_pairs(index, sent, rows.shape[1], pairs.code, pairs.narrow), finite


def encode_pairs(index: Tensor, sent: Tensor, n: int, code: str, *, narrow: bool) -> Any:
    if sent.dtype is not torch.float32:
        return NotImplemented
    return _write_pairs(index.long().contiguous(), sent.contiguous(), n, code, narrow)


def sum_topk(received: Sequence[Tensor], out: Tensor, pairs: TopKPairs, weight: float, *, add: bool = False) -> None:
    check_rows(out=out)
    (b, n), (k, code, narrow), at, marks = out.shape, pairs, pairs.before, Marks(out)
    if not add and not received:
        out.zero_()
    wires = list(received)
    for first in range(0, len(wires), AT_ONCE):
        for run in even_runs(wires[first : first + AT_ONCE], b, at + layout(n, k, code).size):
            index = read_lists(run, at, n, k, code)
            launch(
                _sum_lists, (block_count(n, _OWNED), b), None, None, None, run.first, index, out, marks.clean, b, run.count,
                b * k, run.stride, run.row, n, k, k.bit_length(), weight, MANY=False, EACH=False, EVEN=False, PAIRS=False,
                ADD=add, NARROW=narrow, **coding(None), **_grid(None), LISTS=power_of_two(run.count), OWNED=_OWNED, TILE=TILE,
            )  # fmt: skip
            add = True
    marks.refuse(0, lambda: PayloadError(BAD_VALUES))


def sum_sparse(parts: Sequence[WirePart], out: Tensor, weight: float, *, narrow: bool, add: bool = False) -> None:
    check_rows(out=out)
    check_parts(parts, out.numel(), narrow=narrow)
    if not add:
        out.zero_()
    n, marks = out.numel(), Marks(out)
    for part in parts:
        dense = part.code == DENSE
        k, index = (n, None) if dense else (part.k, _places(part, n))
        launch(_add_part, (block_count(k, TILE),), part.wire[part.values :], index, out, marks.clean, n, k, weight,
               NARROW=narrow, LISTED=not dense, TILE=TILE)  # fmt: skip
    marks.refuse(0, lambda: PayloadError(BAD_VALUES))


def _write_pairs(index: Tensor, sent: Tensor, n: int, code: str, narrow: bool) -> Tensor:
    """The wires of legal lists ``[b, k]`` int64 and their values."""
    (b, k), (number, low, size) = index.shape, layout(n, index.shape[1], code)
    wire = torch.empty(b, k * (2 if narrow else 4) + size, dtype=torch.uint8, device=index.device)
    launch(_write, (block_count(wire.shape[1], TILE), b), None, None, None, sent, index, wire, None, wire.shape[1], k, number,
           low, packed_bytes(k, low), size, MANY=False, NARROW=narrow, **coding(None), TILE=TILE)  # fmt: skip
    return wire


def _places(part: WirePart, n: int) -> Tensor:
    """The places ``[k]`` of a part, int64, legal."""
    if part.places is not None:
        return check_list(part.places[None].long().contiguous(), n)[0]
    end = part.codes + layout(n, part.k, part.code).size
    run = next(even_runs([part.wire[None, part.codes : end]], 1, end - part.codes))
    return read_lists(run, 0, n, part.k, part.code)[0, 0]


# ---- of many tensors ------------------------------------------------------------------------------------------------
@triton.jit
def _listed(programs, kept, index, TILE: tl.constexpr):
    """(a program's row, which of its listed numbers, which of those of all, where these are in the row, whether they count)"""
    task, tile = tile_of(programs)
    k, first = tl.load(kept + 2 * task), tl.load(kept + 2 * task + 1)
    j = tile * TILE + tl.arange(0, TILE)
    return task, j, first + j, tl.load(index + first + j, j < k, 0), j < k


@triton.jit
def _clear(table, programs, kept, index, numbers, flags, ROWS: tl.constexpr, TILE: tl.constexpr):
    task, j, at, _i, inside = _listed(programs, kept, index, TILE)
    if tl.load(flags + task // ROWS) == 0:
        tl.store(index + at, j, inside)
        tl.store(numbers + at, tl.zeros((TILE,), tl.float32), inside)


@triton.jit
def _put(table, programs, kept, index, numbers, EVEN: tl.constexpr, TILE: tl.constexpr):
    task, _j, at, i, inside = _listed(programs, kept, index, TILE)
    rest = tensor_of(table, task, 2, EVEN) + tl.load(table + 8 * task + 7)
    tl.store(rest + i, tl.load(numbers + at, inside, 0.0), inside)


@triton.jit
def _take(
    table, programs, kept, index, like, numbers,
    HELD: tl.constexpr, CLEAR: tl.constexpr, EVEN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    task, j, _at, i, inside = _listed(programs, kept, index, TILE)
    x, start = numbers_of(table, task, like, EVEN)
    place, n = wire_of(table, task)
    inside = inside & (i >= 0) & (i < n)  # what an illegal list names may be anywhere
    if HELD:
        x = tensor_of(table, task, 2, EVEN)
    tl.store(numbers + place // 4 + j, load_number(x, start + i, inside), inside)
    if HELD and CLEAR:
        tl.store(x + start + i, tl.zeros((TILE,), tl.float32), inside)


def encode_topk_many(message: Tensor, many: TensorList, pairs: Pairs) -> Any:
    table = ListTable.of(many, pairs.lists)
    index, sent = many.table.new_empty(table.total), torch.empty(table.total, device=many.device, dtype=torch.float32)
    finite = take_topk_many(index, sent, many, pairs.kept, narrow=pairs.narrow)
    if finite is NotImplemented:
        return NotImplemented
    tiles = many.pairs((ListTable, pairs, "write"), lambda: [block_count(width, TILE) for width in table.widths])
    write_tables(message, many, table.lists, tiles, index, sent, Payload(pairs.narrow))
    return finite


def write_tables(
    message: Tensor, many: TensorList, lists: Tensor, tiles: Tensor, index: Tensor, sent: Tensor, payload: Payload
) -> None:
    """Writes what is sent ``[K]`` and lists ``[K]`` where a table says, by a program for each 1,024 bytes of a wire
    (``tiles``).
    """
    launch(_write, (tiles.shape[0],), many.table, tiles, lists, sent, index, message, payload.fronts, *[None] * 6, MANY=True,
           NARROW=payload.narrow, **coding(payload.codes), TILE=TILE)  # fmt: skip


def sum_topk_many(rows: Tensor, many: TensorList, pairs: Pairs, weight: float) -> Tensor:
    table, marks, add = ListTable.of(many, pairs.lists), many.marks(), False
    for part in rows.split(AT_ONCE):
        index = table.read(part, many, marks.clean)
        sum_tables(part, many, table.lists, index, table.steps, weight, marks, pairs.narrow, each=False, add=add,
                   grid=pairs.grid)  # fmt: skip
        add = True
    return many.all_of(marks.clean)


def sum_tables(
    rows: Tensor, many: TensorList, lists: Tensor, index: Tensor, steps: int, weight: float, marks: Marks, narrow: bool,
    *, each: bool, add: bool, grid: ScaledCodes | None = None, codes: Codes | None = None, plane: int | None = None,
    pairs: bool = False,
) -> None:  # fmt: skip
    """Sets (adds to, with ``add``) each x: weight times the sum of what its lists ``index [W, plane]`` and the values in
    ``rows [W, s]`` uint8 say, W <= 64; tables, marks and ``each`` as for
    :func:`grace.kernels.index_codes.fixed.triton.read_tables`. steps: bits of the longest list. plane: where it is not that of
    ``index``, as with lists of all wires side by side. pairs: each wire has two lists, of numbers and then of codes; W <= 32.
    """
    tiles, W = many.tiles(_OWNED), len(rows) << pairs
    plane = index.shape[1] if plane is None else plane
    launch(_sum_lists, (tiles.shape[0],), many.table, tiles, lists, rows, index, many.like, marks.clean, len(many), W,
           plane, rows.stride(0), None, None, None, steps, weight, MANY=True, EACH=each, EVEN=many.even, PAIRS=pairs,
           ADD=add, NARROW=narrow, **coding(codes) | _grid(grid), LISTS=power_of_two(W), OWNED=_OWNED, TILE=TILE)  # fmt: skip


def clear_listed_many(index: Tensor, values: Tensor, flags: Tensor, many: TensorList, lists: PlaceLists) -> None:
    tiles = _tiles_of(many, lists)
    launch(
        _clear,
        (tiles.shape[0],),
        many.table,
        tiles,
        many.kept(lists.kept),
        index,
        values,
        flags,
        ROWS=many.rows,
        TILE=TILE,
    )


def put_listed_many(index: Tensor, values: Tensor, many: TensorList, lists: PlaceLists) -> None:
    tiles = _tiles_of(many, lists)
    launch(_put, (tiles.shape[0],), many.table, tiles, many.kept(lists.kept), index, values, EVEN=many.even, TILE=TILE)


def take_listed_many(
    message: Tensor, index: Tensor, many: TensorList, lists: PlaceLists, *, clear: bool = True
) -> None:
    tiles = _tiles_of(many, lists)
    launch(_take, (tiles.shape[0],), many.table, tiles, many.kept(lists.kept), index, many.like, message,
           HELD=many.rests is not None, CLEAR=clear, EVEN=many.even, TILE=TILE)  # fmt: skip


def sum_listed_many(message: Tensor, index: Tensor, many: TensorList, lists: PlaceLists) -> Tensor:
    table, marks = ListTable.of(many, lists), many.marks()
    wires = message.view(torch.uint8)[None]
    sum_tables(wires, many, table.lists, index[None], table.steps, 1.0, marks, False, each=False, add=False)
    return many.all_of(marks.clean)


def _grid(grid: ScaledCodes | None) -> dict[str, int]:
    """A grid as constants of a kernel."""
    if grid is None:
        return {"COUNT": 0, "STEP": 0, "UNIT": 0}
    return {"BITS": grid.bits, "COUNT": grid.count, "STEP": grid.step, "UNIT": grid.unit}


def _tiles_of(many: TensorList, lists: PlaceLists) -> Tensor:
    """The programs of listed numbers, as :meth:`TensorList.tiles` has those of all."""
    return many.pairs(("listed", lists.kept), lambda: [block_count(k, TILE) for k in lists.kept])
