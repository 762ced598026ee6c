"""Wires of places of non-zeros and sketches of their values' buckets, as Triton kernels read them.

How many numbers each group has is counted before its cells can be found; what the numbers stand for is added up as lists are.

Letters: as for the kernels that write them (:mod:`grace.kernels.minmax_sketch.triton`); W workers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE, Marks, launch, power_of_two
from grace.flags.capturing import step_word
from grace.kernels.count_sketches.triton import cell_at
from grace.kernels.index_codes.fixed.triton import code_of, place_in, read_tables
from grace.kernels.minmax_sketch.parts import MinMaxCode, MinMaxPlaces
from grace.kernels.minmax_sketch.triton.cells import bucket_at, constants_of, lanes_of_groups, lay_cells, sides_of
from grace.kernels.minmax_sketch.triton.gapped import Listing, find_places, list_of
from grace.kernels.sparse.triton import AT_ONCE, sum_tables
from grace.kernels.tensor_list import TensorList, pair_programs
from grace.kernels.tensor_list.triton import key_of, tile_of, wire_of
from grace.kernels.triton import count_at, load_float, magnitude, mark_if
from grace.kernels.triton.bit_streams import load_bits
from grace.kernels.variable_sparse.triton import PlacesThere, store_list


@triton.jit(do_not_specialize=["stride"])
def _open(
    table, where, coded, lists, wires, marks, stride, q,
    CODE: tl.constexpr, GROUP_BITS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """The tables ``lists [W, T, 8]`` of what the wires say, whose counts are read. A wire that is shorter than that is marked,
    and says nothing, and so is one with a count or a mean that no sender writes. ``where``: as
    :class:`grace.kernels.variable_sparse.triton.PlacesThere` has it; ``coded [W, T]``: as for :func:`_lay`.
    """
    row, other = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    this = other * tl.num_programs(0) + row
    _place, n = wire_of(table, row)
    begin, width = tl.load(where + 3 * this), tl.load(where + 3 * this + 1)
    base = wires + other * stride + begin
    count, z = count_at(base).to(tl.int64), count_at(base + 4)
    k = tl.minimum(tl.maximum(count, 0), n)
    number, low, low_bytes, size = list_of(n, k, coded + this, CODE)
    before = 8 + 4 * q + (k * GROUP_BITS + 7) // 8
    lane = tl.arange(0, SIZE)
    wrong = tl.max((magnitude(load_float(base + 8 + 4 * lane, lane < q)) >= 0x7F800000).to(tl.int32), 0)
    legal = (count == k) & (z >= 0) & (z <= q) & (before + size <= width) & (wrong == 0)
    legal = legal & ((size > 0) | (k == 0))  # or no program has read its places
    tl.store(marks + row, 0, legal == 0)
    at = lists + 8 * this
    store_list(at, tl.where(legal, k, 0), tl.where(legal, number, 0), low, low_bytes, tl.where(legal, size, 0), before)
    tl.store(at + 1, tl.load(where + 3 * this + 2))
    tl.store(at + 7, begin)


@triton.jit
def _groups_at(programs, lists, wires, stride, b, q, GROUP_BITS: tl.constexpr, TILE: tl.constexpr):
    """(a program's row, which of all wires it reads, where that begins, how many of its numbers the list has before, which of
    them it reads, which of these there are, int32: the groups of these)
    """
    row, tile = tile_of(programs)
    other = tl.program_id(1).to(tl.int64)
    this = other * b + row
    base = wires + other * stride + place_in(lists, this)
    k, first = tl.load(lists + 8 * this), tl.load(lists + 8 * this + 1)
    j = tile * TILE + tl.arange(0, TILE)
    inside = j < k
    group = load_bits(base + 8 + 4 * q, j, inside, (k * GROUP_BITS + 7) // 8, GROUP_BITS).to(tl.int32)
    return row, this, base, first, j, inside, tl.where(inside, group, 0)


@triton.jit(do_not_specialize=["stride", "b"])
def _tally(
    programs, lists, wires, counts, marks, stride, b, q,
    G: tl.constexpr, GROUP_BITS: tl.constexpr, SIZE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """``counts [W, T, SIZE]``, zeros before: how many numbers of each wire each group has. Marks groups that there are not."""
    row, this, _base, _first, _j, inside, group = _groups_at(programs, lists, wires, stride, b, q, GROUP_BITS, TILE)
    mark_if(marks + row, group >= G)
    lane = tl.arange(0, SIZE)
    count = tl.histogram(group, SIZE) - tl.where(lane == 0, TILE - tl.sum(inside.to(tl.int32), 0), 0)
    tl.atomic_add(counts + this * SIZE + lane, count, count > 0)


@triton.jit(do_not_specialize=["stride"])
def _bound(
    table, where, lists, sides, counts, share, wires, groups, marks, stride, q, R, G: tl.constexpr, SIZE: tl.constexpr
):
    """The tables of groups ``[W, T, G, 4]``. Marks wires that are shorter than their cells."""
    row, other = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    this = other * tl.num_programs(0) + row
    z = tl.minimum(tl.maximum(count_at(wires + other * stride + place_in(lists, this) + 4), 0), q).to(tl.int32)
    below, lower, upper = sides_of(sides, z)
    group = tl.arange(0, SIZE)
    count = tl.load(counts + this * SIZE + group, group < G, 0).to(tl.int64)
    size = lay_cells(groups + 4 * G * this, count, group, below, lower, upper, share, R, G)
    _k, _first, _number, _low, _low_bytes, coded, before = code_of(lists, this)
    tl.store(marks + row, 0, before + coded + size > tl.load(where + 3 * this + 1))


@triton.jit(do_not_specialize=["stride", "b", "plane", "step"])
def _decode(
    table, programs, where, lists, sides, groups, index, wires, values, marks, stride, b, plane, q, R, step,
    G: tl.constexpr, GROUP_BITS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """``values [W, plane]``: what each number of the lists stands for. Marks buckets that there are not."""
    row, this, base, first, j, inside, group = _groups_at(programs, lists, wires, stride, b, q, GROUP_BITS, TILE)
    other = tl.program_id(1).to(tl.int64)
    _k, _first, _number, _low, _low_bytes, size, before = code_of(lists, this)
    z = tl.minimum(tl.maximum(count_at(base + 4), 0), q).to(tl.int32)
    below, lower, upper = sides_of(sides, z)
    at = other * plane + first + j
    i = tl.load(index + at, inside, 0)
    key0, key1 = key_of(table, row)
    there = inside & (group < G)
    line = groups + 4 * (this * G + group)
    cols, bits = tl.load(line, there, 1), tl.load(line + 3, there, 0)
    ahead = before + size + tl.load(line + 2, there, 0)
    room = tl.load(where + 3 * this + 1) - ahead
    there = there & (bits > 0)
    mask = (1 << bits.to(tl.int32)) - 1
    number = tl.zeros((TILE,), tl.int32)
    for r in range(R):
        bit = (r * cols + cell_at(key0, key1, step, r + tl.arange(0, 1), i, cols)) * bits
        o = bit >> 3
        word = tl.load(base + ahead + o, there & (o < room), 0).to(tl.int32)
        word |= tl.load(base + ahead + o + 1, there & (o + 1 < room), 0).to(tl.int32) << 8
        number = tl.maximum(number, (word >> (bit & 7).to(tl.int32)) & mask)
    bucket = bucket_at(group, number, z, below, lower, upper)
    legal = (bucket >= 0) & (bucket < q)
    mark_if(marks + row, inside & (legal == 0))
    tl.store(values + at, load_float(base + 8 + 4 * bucket, inside & legal), inside)


def sum_sketched(rows: Tensor, many: TensorList, code: MinMaxCode, places: MinMaxPlaces, weight: float) -> Tensor:
    """As :func:`grace.kernels.minmax_sketch.sum_minmax_many`."""
    marks, (W, _), T, q, G = Marks(rows, len(many)), rows.shape, len(many), code.q, code.total
    (sides, share), size, how = constants_of(many, code), lanes_of_groups(G), {"GROUP_BITS": code.bits}
    lists, groups = many.table.new_empty(W, T, 8), many.table.new_empty(W, T, G, 4)
    layout = places_there(places, many)
    listing = find_places(rows, many, code, places, layout.where) if code.gaps else None
    where, coded = (layout.where, None) if listing is None else (listing.where, listing.coded)
    launch(_open, (T, W), many.table, where, coded, lists, rows, marks.clean, rows.stride(0), q, CODE=code.number, **how,
           SIZE=power_of_two(q))  # fmt: skip
    if listing is None:
        index = read_tables(rows, many, lists, layout.plane, layout.read, layout.spans, marks.clean, each=True)
        listing = Listing(where, layout.more[0], index, layout.plane)
    listed, index, plane = listing.listed, listing.index, listing.plane
    counts = torch.zeros(W, T, size, dtype=torch.int32, device=many.device)
    grid = len(listed), W
    launch(
        _tally, grid, listed, lists, rows, counts, marks.clean, rows.stride(0), T, q, G=G, **how, SIZE=size, TILE=TILE
    )
    launch(_bound, (T, W), many.table, where, lists, sides, counts, share, rows, groups, marks.clean, rows.stride(0), q,
           code.rows, G=G, SIZE=size)  # fmt: skip
    values = torch.empty(index.shape, device=many.device, dtype=torch.float32)
    launch(_decode, grid, many.table, listed, where, lists, sides, groups, index, rows, values, marks.clean,
           rows.stride(0), T, plane, q, code.rows, step_word(places.step, many.device), G=G, **how, TILE=TILE)  # fmt: skip
    lists[:, :, 7] = 4 * lists[:, :, 1]  # now of values
    numbers, index, steps = values.view(torch.uint8).expand(W, -1), index.expand(W, -1), max(many.sizes).bit_length()
    for first in range(0, W, AT_ONCE):
        part = slice(first, first + AT_ONCE)
        sum_tables(numbers[part], many, lists[part], index[part], steps, weight, marks, False, each=True, add=first > 0,
                   plane=plane)  # fmt: skip
    return marks.clean if listing.legal is None else marks.clean & listing.legal


def places_there(places: MinMaxPlaces, many: TensorList) -> PlacesThere:
    """Positions of wires on the device, and the programs that read what is listed, made once."""
    rooms = torch.from_numpy(places.rooms)
    return places.once(lambda: PlacesThere(places, many, pair_programs(-(-rooms.amax(dim=0) // TILE))))
