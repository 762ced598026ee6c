"""Places of non-zeros and sketches of their values' buckets, as Triton kernels. Those that read wires are in ``minmax.read``.

How many numbers there are, and of which groups, the device finds out: what they are listed in has room for all, and programs
end where there are none. Non-zeros are what exceeds 0 in magnitude; their quantiles and means are those of
``kernels.quantiles``, by two sorts of the whole bucket. A cell is the least of integers, whatever the order.

Letters: G groups, SIZE a power of two above; R hash functions. Tables of groups are those of ``minmax.cells``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE, Marks, launch
from grace.flags.capturing import step_word
from grace.kernels.count_sketches import PRIME
from grace.kernels.count_sketches.triton import cell_at
from grace.kernels.index_codes.fixed.triton import code_byte, code_of
from grace.kernels.minmax_sketch import MinMaxCode, MinMaxPlaces
from grace.kernels.minmax_sketch.triton.cells import (
    bucket_at,
    constants_of,
    lanes_of_groups,
    lay_cells,
    locate,
    sides_of,
)
from grace.kernels.minmax_sketch.triton.gapped import LaidPlaces, lay_places, list_of, write_places
from grace.kernels.minmax_sketch.triton.read import places_there, sum_sketched
from grace.kernels.quantiles import code_bits, samples
from grace.kernels.quantiles.triton import add_buckets, bucket_of, cut_rows, key_of_row
from grace.kernels.selection.triton import MOST, Reaching
from grace.kernels.sparse_codes import Payload
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.triton import key_of, shared_key_of, tensor_of, tile_of, wire_of
from grace.kernels.triton import mark_if, word_of
from grace.kernels.triton.bit_streams import pack_byte
from grace.kernels.variable_sparse.parts import Chosen
from grace.kernels.variable_sparse.triton import store_list
from grace.random.triton import walk

_EMPTY = 0x7FFFFFFF  # of a cell: as many bits as it has, all of them set


# ---- written --------------------------------------------------------------------------------------------------------
@triton.jit
def _bits_of(n):
    """int32: how many bits n has, an int64 below 2**31."""
    bits = tl.zeros((1,), tl.int32)
    for b in tl.static_range(0, 31):
        bits += ((n >> b) > 0).to(tl.int32)
    return tl.sum(bits, 0)


@triton.jit(do_not_specialize=["step"])
def _look(table, programs, heads, shapes, total, sent, drawn, keys, marks, step, TILE: tl.constexpr):
    """Marks of rows with negative, and with other numbers; and the keys of what is seen: all, or a subset. ``shapes [T, 2]``:
    of how many numbers; ``drawn [T, 2]``: the keys of the streams that choose them. ``sent``: the numbers.
    """
    row, tile = tile_of(programs)
    _place, n = wire_of(table, row)
    head, k, seen = tl.load(heads + row), tl.load(total + row).to(tl.int64), tl.load(shapes + 2 * row)
    j = tile * TILE + tl.arange(0, TILE)
    p = tl.load(sent + head + j, j < k, 0.0)
    mark_if(marks + 3 * row + 1, p < 0)
    mark_if(marks + 3 * row + 2, (j < k) & (p >= 0))
    if (seen < k) & (tile * TILE < seen):
        key0, key1 = shared_key_of(drawn, row)
        i = walk(j, j < seen, k, (_bits_of(k - 1) + 1) // 2, key0, key1, step)
        p = tl.load(sent + head + i, j < seen, 0.0)
    tl.store(keys + head + j, tl.where(j < seen, key_of_row(p, row), 0x7FFFFFFFFFFFFFFF), j < n)


@triton.jit
def _encode(table, programs, heads, total, sent, edges, cells, q, behind, BITS: tl.constexpr, TILE: tl.constexpr):
    """``cells``: in which bucket each number is, of those of all rows; the one behind the last where there is none."""
    row, tile = tile_of(programs)
    _place, n = wire_of(table, row)
    head, k = tl.load(heads + row), tl.load(total + row).to(tl.int64)
    j = tile * TILE + tl.arange(0, TILE)
    bucket = (row * q).to(tl.int32) + bucket_of(edges + (row << BITS), tl.load(sent + head + j, j < k, 0.0), q, BITS)
    tl.store(cells + head + j, tl.where(j < k, bucket, behind), j < n)


@triton.jit
def _lay(
    table, total, coded, zs, sides, ends, share, groups, lists, widths, q, R,
    CODE: tl.constexpr, G: tl.constexpr, GROUP_BITS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """The tables of groups and of lists, and the widths of the wires. ``ends``: how many numbers come before each bucket;
    ``coded``: of each row the bytes of its places, if the device has to be told.
    """
    row = tl.program_id(0).to(tl.int64)
    _place, n = wire_of(table, row)
    k, z = tl.load(total + row).to(tl.int64), tl.load(zs + row)
    below, lower, upper = sides_of(sides, z)
    group = tl.arange(0, SIZE)
    side = tl.where(group < below, z, q - z).to(tl.int32)  # how many buckets there are on the group's side
    first = tl.minimum(tl.where(group < below, group * lower, (group - below) * upper), side)
    last = tl.minimum(first + tl.where(group < below, lower, upper), side)
    at = ends + row * q + tl.where(group < below, z - last, z + first)
    count = tl.load(at + last - first, group < G, 0) - tl.load(at, group < G, 0)
    bytes_of = lay_cells(groups + 4 * G * row, count, group, below, lower, upper, share, R, G)
    number, low, low_bytes, size = list_of(n, k, coded + row, CODE)
    before = 8 + 4 * q + (k * GROUP_BITS + 7) // 8
    store_list(lists + 8 * row, k, number, low, low_bytes, size, before)
    tl.store(widths + row, before + size + bytes_of)


@triton.jit
def _chosen(table, programs, heads, total, index, numbers, TILE: tl.constexpr):
    """(a program's row, where its numbers are among those of all, which count, their places, and of each what ``numbers``
    says)
    """
    row, tile = tile_of(programs)
    at = tile * TILE + tl.arange(0, TILE)
    inside = at < tl.load(total + row)
    at += tl.load(heads + row)
    return row, at, inside, tl.load(index + at, inside, 0), tl.load(numbers + at, inside, 0)


@triton.jit(do_not_specialize=["step"])
def _hash(
    table, programs, heads, total, index, cells, zs, sides, groups, rooms, least, q, R, step,
    G: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """``least``: of each cell, which row's begin at ``rooms [T]``, the least number that falls into it. ``cells``: buckets of
    all rows, which become groups.
    """
    row, at, inside, i, bucket = _chosen(table, programs, heads, total, index, cells, TILE)
    z = tl.load(zs + row)
    below, lower, upper = sides_of(sides, z)
    bucket = tl.where(inside, bucket - (row * q).to(tl.int32), z)
    group, number = locate(bucket, z, below, lower, upper)
    group = tl.where(inside, group, 0)
    tl.store(cells + at, group, inside)
    key0, key1 = key_of(table, row)
    line = groups + 4 * (row * G + group)
    cols = tl.load(line, inside, 1)
    first = tl.load(rooms + row) + tl.load(line + 1, inside, 0)
    for r in range(R):
        cell = first + r * cols + cell_at(key0, key1, step, r + tl.arange(0, 1), i, cols)
        tl.atomic_min(least + cell, number, inside)


@triton.jit(do_not_specialize=["step"])
def _drop(
    table, programs, heads, total, index, cells, sent, means, zs, sides, groups, rooms, least, q, R, step,
    G: tl.constexpr, EVEN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Takes from the rests what the wires say."""
    row, at, inside, i, group = _chosen(table, programs, heads, total, index, cells, TILE)
    z = tl.load(zs + row)
    below, lower, upper = sides_of(sides, z)
    key0, key1 = key_of(table, row)
    line = groups + 4 * (row * G + group)
    cols = tl.load(line, inside, 1)
    first = tl.load(rooms + row) + tl.load(line + 1, inside, 0)
    number = tl.zeros((TILE,), tl.int32)
    for r in range(R):
        cell = first + r * cols + cell_at(key0, key1, step, r + tl.arange(0, 1), i, cols)
        number = tl.maximum(number, tl.load(least + cell, inside, 0))
    bucket = bucket_at(group, number, z, below, lower, upper)
    value = tl.load(sent + at, inside, 0.0) - tl.load(means + row * q + bucket, inside, 0.0)
    tl.store(tensor_of(table, row, 2, EVEN) + i, value, inside)


@triton.jit
def _write(
    programs, where, lists, index, cells, means, zs, groups, rooms, least, message, q, R,
    CODE: tl.constexpr, G: tl.constexpr, GROUP_BITS: tl.constexpr, SIZE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The wires, but for places that travel as gaps; ``where [T, 3]``: the byte where each begins, and its width."""
    row, tile = tile_of(programs)
    k, head, number, low, low_bytes, size, before = code_of(lists, row)
    begin, width = tl.load(where + 3 * row), tl.load(where + 3 * row + 1)
    start = tile * TILE
    o = start + tl.arange(0, TILE)
    ahead = 8 + 4 * q
    byte = tl.zeros((TILE,), tl.int32)
    if start < ahead:
        mean = tl.load(means + row * q + (o >> 2) - 2, (o >= 8) & (o < ahead), 0.0)
        word = tl.where(o < 4, k.to(tl.int32), tl.where(o < 8, tl.load(zs + row), word_of(mean)))
        byte = tl.where(o < ahead, (word >> ((o & 3) * 8).to(tl.int32)) & 0xFF, 0)
    if (start + TILE > ahead) & (start < before):
        packed = pack_byte(cells + head, tl.maximum(o - ahead, 0), k, GROUP_BITS).to(tl.int32)
        byte |= tl.where((o >= ahead) & (o < before), packed, 0)
    if (CODE != 4) & (start + TILE > before) & (start < before + size):
        byte |= code_byte(index + head, start - before, k, number, low, low_bytes, size, TILE)
    if (start + TILE > before + size) & (before + size < width):
        lane = tl.arange(0, SIZE)
        left = before + size + tl.load(groups + 4 * (row * G + lane) + 2, lane < G, 0)
        left = tl.where(lane < G, left, start + TILE)
        last = tl.sum((left < start + TILE).to(tl.int32), 0)  # groups before it begin in this tile, or before
        for g in range(tl.maximum(tl.sum((left <= start).to(tl.int32), 0) - 1, 0), last):
            line = groups + 4 * (row * G + g)
            count, bits, first = R * tl.load(line), tl.load(line + 3), before + size + tl.load(line + 2)
            end = first + (count * bits + 7) // 8
            if (first < end) & (end > start):
                table = least + tl.load(rooms + row) + tl.load(line + 1)
                packed = pack_byte(table, tl.maximum(o - first, 0), count, bits).to(tl.int32)
                byte |= tl.where((o >= first) & (o < end), packed, 0)
    tl.store(message + begin + o, byte.to(tl.uint8), o < width)


# ---- launched -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Sketched:
    """The sketched numbers, as they are written. total int32 ``[T]``: how many numbers; index int64, sent float32, cells
    int32: their places, they themselves, and their buckets among those of all rows; zs int32 ``[T]``; means float32
    ``[T, q]``; groups int64 ``[T, G, 4]``; lists int64 ``[T, 8]``, as :class:`grace.kernels.variable_sparse.triton.Lists` has
    them; step: of their streams; laid: places that travel as gaps.
    """

    total: Tensor
    index: Tensor
    sent: Tensor
    cells: Tensor
    zs: Tensor
    means: Tensor
    groups: Tensor
    lists: Tensor
    step: int
    laid: LaidPlaces | None


def choose_minmax_many(like: Tensor, many: TensorList, code: MinMaxCode, step: int) -> Any:
    if max(many.sizes) > min(MOST, PRIME):
        return NotImplemented
    device, tiles, heads, q, T, N = many.device, many.tiles(TILE), many.heads(1), code.q, len(many), sum(many.sizes)
    zeros = many.numbers("zeros", lambda: [0.0] * T, torch.float64)
    picked = Reaching.of(many, zeros, True)
    total = picked.total.masked_fill(~picked.finite, 0)
    lists = torch.zeros(T, 8, dtype=torch.int64, device=device)
    lists[:, 1] = heads
    index, sent = lists.new_empty(N), torch.empty(N, device=device, dtype=torch.float32)
    picked.emit(lists, index, sent, False, Payload(False))
    laid = lay_places(index, total, many, code) if code.gaps else None

    seen = torch.where(total > samples.SMALL, (total.double() * code.sample).ceil().long(), total)
    shapes, marks = torch.stack((seen, seen.cumsum(0) - seen), dim=1), Marks(sent, 3 * T)
    drawn = many.numbers(
        ("drawn", 0), lambda: [word for own in many.streams for word in own.fork(0).key()], torch.int64
    )
    keys, zs, where = torch.empty_like(index), torch.empty_like(total), (many.table, tiles, heads)
    launch(
        _look, (len(tiles),), *where, shapes, total, sent, drawn, keys, marks.clean, step_word(step, device), TILE=TILE
    )
    edges = cut_rows(keys, shapes, marks.clean, q, zero_edge=True, zs=zs)
    cells = torch.empty(N, dtype=torch.int32, device=device)
    launch(_encode, (len(tiles),), *where, total, sent, edges, cells, q, T * q, BITS=code_bits(q), TILE=TILE)
    means, ends = add_buckets(cells, many, q, None, sent)
    sides, share = constants_of(many, code)
    groups, widths = lists.new_empty(T, code.total, 4), lists.new_zeros(T)
    coded = None if laid is None else laid.coded
    launch(_lay, (T,), many.table, total, coded, zs, sides, ends, share, groups, lists, widths, q, code.rows, CODE=code.number,
           G=code.total, GROUP_BITS=code.bits, SIZE=lanes_of_groups(code.total))  # fmt: skip
    return Chosen(widths, picked.finite, Sketched(total, index, sent, cells, zs, means, groups, lists, step, laid))


def write_minmax_many(message: Tensor, many: TensorList, code: MinMaxCode, chosen: Chosen, places: MinMaxPlaces) -> Any:
    if not isinstance(chosen.notes, Sketched):
        return NotImplemented
    notes, layout, tiles, q, G = chosen.notes, places_there(places, many), many.tiles(TILE), code.q, code.total
    sizes = [code.cells(n) for n in many.sizes]
    rooms = many.numbers((MinMaxCode, code), lambda: [sum(sizes[:t]) for t in range(len(sizes))], torch.int64)
    least = torch.full((sum(sizes),), _EMPTY, dtype=torch.int32, device=many.device)
    step, (sides, _) = step_word(notes.step, many.device), constants_of(many, code)
    what = many.table, tiles, many.heads(1), notes.total, notes.index, notes.cells
    launch(_hash, (len(tiles),), *what, notes.zs, sides, notes.groups, rooms, least, q, code.rows, step, G=G, TILE=TILE)
    launch(_write, (len(layout.written),), layout.written, layout.where[places.own], notes.lists, notes.index, notes.cells,
           notes.means, notes.zs, notes.groups, rooms, least, message, q, code.rows, CODE=code.number, G=G,
           GROUP_BITS=code.bits, SIZE=lanes_of_groups(G), TILE=TILE)  # fmt: skip
    if notes.laid is not None:
        write_places(message, notes.laid, layout.where[places.own, :, 0] + notes.lists[:, 6], layout.written)
    if many.rests is not None:
        launch(_drop, (len(tiles),), *what, notes.sent, notes.means, notes.zs, sides, notes.groups, rooms, least, q, code.rows,
               step, G=G, EVEN=many.even, TILE=TILE)  # fmt: skip
    return None


def sum_minmax_many(rows: Tensor, many: TensorList, code: MinMaxCode, places: MinMaxPlaces, weight: float) -> Tensor:
    return sum_sketched(rows, many, code, places, weight)
