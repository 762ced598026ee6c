"""Counted wires as Triton kernels: lists of any length in tables that are made anew at each step, on the device.

The host knows the widths of all wires, and from these how many programs may be needed; how many values there are, and which
code they have, the device finds out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from grace import wire as wires
from grace.compute.host import host_int64
from grace.compute.launching import TILE, Marks, launch
from grace.kernels.index_codes.fixed.triton import LIST_BITS, read_tables
from grace.kernels.minmax_sketch.parts import MinMaxPlaces
from grace.kernels.multi_tensor import clear_many
from grace.kernels.random_masks import Drawing
from grace.kernels.random_masks.triton import Subsets
from grace.kernels.selection.triton import Largest, Reaching, find_kth
from grace.kernels.selection.triton.candidates import MOST, Look, Notes, measure_many
from grace.kernels.sparse.triton import AT_ONCE, sum_tables, write_tables
from grace.kernels.sparse_codes import Payload
from grace.kernels.sparse_codes.triton import coding, front_at, front_bytes_of
from grace.kernels.tensor_list import TensorList, carry_together, pair_programs, spans_of
from grace.kernels.tensor_list.triton import numbers_of, tile_of, wire_of
from grace.kernels.triton import count_at, load_number, magnitude
from grace.kernels.variable_sparse import Chosen, CountedCode, CountedPlaces, Sampling, SideSelection
from grace.kernels.variable_sparse.parts import COUNT
from grace.kernels.variable_sparse.triton.gapped import choose_gapped, sum_gapped, write_gapped
from grace.kernels.variable_sparse.triton.sided import ListedSides, list_sides

_MANY = 4096  # numbers of a program that only counts


@triton.jit
def lay_out(n, k, CODE: tl.constexpr):
    """(which code k indices below n have, how many low bits are packed, their bytes, all bytes), as
    :func:`grace.kernels.index_codes.fixed.layout`; CODE 3: the smallest.
    """
    bits = k - k + 1
    low = k - k
    cost = k + n - 1
    for b in tl.static_range(1, 32):
        bits += ((n - 1) >> b) > 0
    for b in tl.static_range(1, 32):
        other = k * b + k + ((n - 1) >> b)
        better = (b <= bits) & (other < cost)
        low = tl.where(better, b, low)
        cost = tl.where(better, other, cost)
    raw, bitmap = (k * bits + 7) // 8, (n + 7) // 8
    low_bytes = (k * low + 7) // 8
    size = low_bytes + (cost - k * low + 7) // 8
    number = k - k + CODE
    if CODE == 3:
        number = tl.where(raw <= bitmap, 0, 1)
        number = tl.where(size < tl.minimum(raw, bitmap), 2, number)
    low = tl.where(number == 0, bits, tl.where(number == 1, 0, low))
    low_bytes = tl.where(number == 0, raw, tl.where(number == 1, 0, low_bytes))
    size = tl.where(number == 0, raw, tl.where(number == 1, bitmap, size))
    some = k > 0
    return number, tl.where(some, low, 0), tl.where(some, low_bytes, 0), tl.where(some, size, 0)


@triton.jit
def store_list(at, k, number, low, low_bytes, size, before):
    """A line of a table, but for where its list begins and where its values do."""
    tl.store(at, k)
    tl.store(at + 2, number)
    tl.store(at + 3, low)
    tl.store(at + 4, low_bytes)
    tl.store(at + 5, size)
    tl.store(at + 6, before)


@triton.jit
def values_bytes(k, VALUE: tl.constexpr, KIND: tl.constexpr, BITS: tl.constexpr):
    """Bytes of k values; KIND: of a header and k codes of so many BITS."""
    size = k * VALUE
    if KIND:
        size = front_bytes_of(KIND) + (k * BITS + 7) // 8
    return size


@triton.jit
def _plan(
    table, total, lists, widths, VALUE: tl.constexpr, CODE: tl.constexpr,
    KIND: tl.constexpr, MOST: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """The table of what is sent, of ``total [T]`` numbers of each tensor, and the widths of the wires."""
    row = tl.program_id(0).to(tl.int64)
    _place, n = wire_of(table, row)
    k = tl.load(total + row).to(tl.int64)
    number, low, low_bytes, size = lay_out(n, k, CODE)
    dense = (KIND == 0) & (k * VALUE + size >= n * VALUE)
    k = tl.where(dense, n, k)
    size = tl.where(dense, 0, size)
    before = values_bytes(k, VALUE, KIND, BITS)
    store_list(lists + 8 * row, k, tl.where(dense, 3, number), low, low_bytes, size, before)
    tl.store(widths + row, 4 + before + size)


@triton.jit(do_not_specialize=["stride"])
def _open(
    table, where, lists, wires, marks, stride, VALUE: tl.constexpr, CODE: tl.constexpr,
    KIND: tl.constexpr, MOST: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """The tables ``lists [W, T, 8]`` of what the wires say, whose counts are read. A wire that is not as long as its count
    says is marked, and says nothing. ``where [W, T, 3]``: the byte where a wire begins, its width, and where its list goes.
    """
    row, other = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    this = other * tl.num_programs(0) + row
    _place, n = wire_of(table, row)
    at, width = tl.load(where + 3 * this), tl.load(where + 3 * this + 1)
    count = count_at(wires + other * stride + at).to(tl.int64)
    dense = (KIND == 0) & (count == -1)
    k = tl.where(dense, n, tl.minimum(tl.maximum(count, 0), n))
    number, low, low_bytes, size = lay_out(n, k, CODE)
    size = tl.where(dense, 0, size)
    before = values_bytes(k, VALUE, KIND, BITS)
    shorter = (KIND > 0) | (before + size < n * VALUE)  # or it would have had no list
    legal = (count >= 0) & (count <= n) | dense
    legal = legal & (4 + before + size == width) & (dense | shorter)
    if KIND:
        _word, good = front_at(wires + other * stride + at + 4, KIND)
        legal = legal & good
    tl.store(marks + row, 0, legal == 0)
    k, size = tl.where(legal, k, 0), tl.where(legal, size, 0)
    number = tl.where(legal, tl.where(dense, 3, number), 0)
    store_list(lists + 8 * this, k, number, low, low_bytes, size, values_bytes(k, VALUE, KIND, BITS))
    tl.store(lists + 8 * this + 1, tl.load(where + 3 * this + 2))
    tl.store(lists + 8 * this + 7, at + 4)


@triton.jit
def _sample(table, programs, like, index, first, out, EVEN: tl.constexpr, TILE: tl.constexpr):
    """``out [S]``: the numbers of each tensor at its share of the places ``index [S]``; ``first [T, 2]``: where that begins,
    and how many there are.
    """
    row, tile = tile_of(programs)
    x, _start = numbers_of(table, row, like, EVEN)
    begin, seen = tl.load(first + 2 * row), tl.load(first + 2 * row + 1)
    j = tile * TILE + tl.arange(0, TILE)
    i = tl.load(index + begin + j, j < seen, 0)
    tl.store(out + begin + j, load_number(x, i, j < seen), j < seen)


@triton.jit
def _levels(table, programs, like, bounds, totals, rows, LEVELS: tl.constexpr, EVEN: tl.constexpr, TILE: tl.constexpr):
    """``totals [LEVELS, rows]`` int32, zeros before: how many keys of a row are at least each of its ``bounds``, likewise."""
    row, tile = tile_of(programs)
    x, _start = numbers_of(table, row, like, EVEN)
    _place, n = wire_of(table, row)
    lane = tl.arange(0, TILE)
    left = tl.minimum(n - tile * TILE, TILE).to(tl.int32)
    key = magnitude(load_number(x + tile * TILE, lane, lane < left, left == TILE))
    key = tl.where(lane < left, key, -1)
    for level in tl.static_range(LEVELS):
        at = level * rows + row
        count = tl.sum((key >= tl.load(bounds + at)).to(tl.int32), 0)
        tl.atomic_add(totals + at, count, count > 0)


@dataclass(frozen=True)
class Lists:
    """The numbers selected from each tensor, which ``picked`` writes into lists. ``lists`` int64 ``[T, 8]``: k, where the
    list begins, which code it has (3: none, all n values), how many low bits are packed, their bytes, all bytes of the
    code, those of the values, and where these begin. fronts: int32 or int64 ``[T]``, if codes travel.
    """

    picked: Reaching | Largest | ListedSides
    lists: Tensor
    fronts: Tensor | None = None


class PlacesThere:
    """Positions of wires, and the programs that write and read them, on the device: one copy for each step.

    where: int64 ``[W, T, 3]``, as :func:`_open` takes it. begins: int64 ``[T]``, where the lists that are written begin.
    written, read, spans: the programs. plane: room for what a worker's lists hold. more: on the device, too.
    """

    def __init__(self, places: CountedPlaces | MinMaxPlaces, many: TensorList, *more: Tensor):
        widths, rooms, listed = (torch.from_numpy(x) for x in (np.array(places.widths), places.rooms, places.listed))
        own = rooms[places.own]
        # A bitmap has n bits; raw lists have k fields; of the shortest Elias-Fano code at most 3 k bits are in unary.
        most = torch.maximum(host_int64(many.sizes), 3 * rooms) + 8
        bits = torch.minimum(8 * (widths - COUNT), most).masked_fill(listed == 0, 0)
        at = (host_int64(places.begins) + wires.HEADER).expand_as(widths)
        read = -(-bits.amax(dim=0) // LIST_BITS)
        parts = (
            torch.stack((at, widths, listed.cumsum(1) - listed), dim=2), own.cumsum(0) - own, spans_of(read),
            pair_programs(-(-widths[places.own] // TILE)), pair_programs(read), *more,
        )  # fmt: skip
        self.where, self.begins, self.spans, self.written, self.read, *self.more = carry_together(parts, many.device)
        self.plane = max(1, int(places.listed.sum(axis=1).max()))

    @staticmethod
    def of(places: CountedPlaces, many: TensorList) -> PlacesThere:
        """The device's copy of these places, which is made once."""
        return places.once(lambda: PlacesThere(places, many))


def choose_reaching_many(bounds: Tensor, many: TensorList, code: CountedCode, *, strict: bool) -> Any:
    if max(many.sizes) > MOST:
        return NotImplemented
    picked = Reaching.of(many, bounds, strict)
    return _chosen(many, picked, picked.finite, code)


def choose_coded_many(fronts: Tensor, bounds: Tensor, many: TensorList, code: CountedCode, *, strict: bool) -> Any:
    if max(many.sizes) > MOST:
        return NotImplemented
    picked = Reaching.of(many, bounds, strict)
    picked = picked._replace(total=picked.total.masked_fill(~picked.finite | (fronts == 0), 0))
    return _chosen(many, picked, picked.finite, code, fronts)


def _chosen(
    many: TensorList,
    picked: Reaching | Largest | ListedSides,
    finite: Tensor,
    code: CountedCode,
    fronts: Tensor | None = None,
) -> Chosen:
    if code.gaps:
        return choose_gapped(many, picked, finite, code, fronts)
    lists, widths = many.table.new_empty(len(many), 8), many.table.new_zeros(len(many))
    launch(_plan, (len(many),), many.table, picked.total, lists, widths, VALUE=code.value, CODE=code.number,
           **coding(code.codes))  # fmt: skip
    return Chosen(widths, finite, Lists(picked, lists, fronts))


def choose_sampled_many(like: Tensor, many: TensorList, code: CountedCode, sampling: Sampling, step: int) -> Any:
    if max(many.sizes) > MOST:
        return NotImplemented
    finite = measure_many(Look.at_many(many), many, None)
    sums = _Samples.of(many, sampling)
    sums.numbers.point(many.rests or many.xs)
    clear_many(finite, sums.numbers)
    look = Look.at_many(sums.numbers)
    most = many.numbers((Sampling, "most", sampling), lambda: sampling.most, torch.int32)
    total = torch.minimum(sums.count(sums.limits(step)), most)
    return _chosen(many, Largest.of(look, sums.numbers, total), finite, code)


def choose_sides_many(like: Tensor, many: TensorList, code: CountedCode, sides: SideSelection, step: int) -> Any:
    if max(many.sizes) > MOST:
        return NotImplemented
    listed, fronts, finite = list_sides(many, sides, step)
    return _chosen(many, listed, finite, code, fronts)


class _Samples:
    """Random samples of several tensors.

    numbers: the tensors' sums with the memories, which have to be pointed at.
    """

    def __init__(self, many: TensorList, sampling: Sampling):
        begins = [sum(sampling.seen[:t]) for t in range(len(many))]
        streams = [stream.fork(0) for stream in many.streams]
        self.numbers = TensorList(many.sizes, [4 * begin for begin in begins], streams, many.device)
        self._sampling, self._drawing = sampling, Drawing(tuple(sampling.seen), None)
        self._drawn = torch.empty(sum(sampling.seen), device=many.device, dtype=torch.float32)
        self._samples = TensorList(sampling.seen, (), (), many.device)
        self._samples.point([x[None] for x in self._drawn.split(list(sampling.seen))])
        self._first = self.numbers.numbers(
            "first", lambda: [*sum(zip(begins, sampling.seen, strict=True), ())], torch.int64
        )
        kept = [*sum(((k, 0) for k in sampling.sought), ())]
        self._sought = self._samples.numbers("sought", lambda: kept, torch.int64)
        low = [sampling.lower * k for k in sampling.most]
        self._enough = self.numbers.numbers("enough", lambda: low, torch.float64)

    @staticmethod
    def of(many: TensorList, sampling: Sampling) -> _Samples:
        """Tables of a bucket, which are made once."""
        return many.once((_Samples, sampling), lambda: _Samples(many, sampling))

    def limits(self, step: int) -> Tensor:
        """float64 ``[T]``: the thresholds that the samples of this step give."""
        subsets = Subsets.of(self.numbers, self._drawing)
        subsets.draw(step)
        many, seen = self.numbers, self._sampling.seen
        tiles = many.pairs("sample", lambda: [-(-k // TILE) for k in seen])
        launch(_sample, (len(tiles),), many.table, tiles, many.like, subsets.index, self._first, self._drawn, EVEN=many.even,
               TILE=TILE)  # fmt: skip
        look = Look.at_many(self._samples)
        notes = Notes.of_largest(look, self._drawn, None, False, self._sought, None)
        measure_many(look, self._samples, notes)
        return find_kth(look, notes).view(torch.float32).double()

    def count(self, limit: Tensor) -> Tensor:
        """int32 ``[T]``: how many numbers reach the thresholds, ``[T]`` float64, that are lowered until these are enough."""
        many, levels = self.numbers, [limit]
        for _ in range(self._sampling.rounds):
            levels.append(levels[-1] * self._sampling.lower)
        bounds = torch.stack(levels).float().view(torch.int32)
        totals, tiles = torch.zeros_like(bounds), many.tiles(_MANY)
        launch(_levels, (len(tiles),), many.table, tiles, many.like, bounds, totals, len(many), LEVELS=len(levels),
               EVEN=many.even, TILE=_MANY)  # fmt: skip
        enough = totals[:-1].double() >= self._enough
        tries = torch.arange(len(levels) - 1, device=totals.device, dtype=torch.int64)[:, None]
        level = torch.where(enough, tries, len(levels) - 1).amin(dim=0, keepdim=True)
        return totals.gather(0, level)[0]


def write_chosen_many(
    message: Tensor, many: TensorList, code: CountedCode, chosen: Chosen, places: CountedPlaces
) -> Any:
    if isinstance(chosen.notes, list):  # wires that are made: some tensor was too large to choose from it here
        return NotImplemented
    if code.gaps:
        return write_gapped(message, chosen, places)
    lists, own = chosen.notes.lists, places.own
    layout = PlacesThere.of(places, many)
    lists[:, 1], lists[:, 7] = layout.begins, layout.where[own, :, 0] + COUNT
    total = int(places.rooms[own].sum())
    payload = Payload(code.narrow, code.codes, chosen.notes.fronts)
    index, sent = many.table.new_empty(total), payload.room(total, many.device)
    chosen.notes.picked.emit(lists, index, sent, many.rests is not None, payload)
    counts = torch.where(lists[:, 2] == 3, -1, lists[:, 0]).to(torch.int32)
    message.view(torch.int32).index_copy_(0, layout.where[own, :, 0] // 4, counts)
    return write_tables(message, many, lists, layout.written, index, sent, payload)


def sum_counted_many(rows: Tensor, many: TensorList, code: CountedCode, places: CountedPlaces, weight: float) -> Tensor:
    if code.gaps:
        return sum_gapped(rows, many, code, places, weight)
    layout, marks, steps = PlacesThere.of(places, many), Marks(rows, len(many)), _steps(many)
    T = len(many)
    lists = many.table.new_empty(len(rows), T, 8)
    launch(_open, (T, len(rows)), many.table, layout.where, lists, rows, marks.clean, rows.stride(0),
           VALUE=code.value, CODE=code.number, **coding(code.codes))  # fmt: skip
    for first in range(0, len(rows), AT_ONCE):
        part, tables = rows[first : first + AT_ONCE], lists[first : first + AT_ONCE]
        index = read_tables(part, many, tables, layout.plane, layout.read, layout.spans, marks.clean, each=True)
        sum_tables(part, many, tables, index, steps, weight, marks, code.narrow, each=True, add=first > 0,
                   codes=code.codes)  # fmt: skip
    return many.all_of(marks.clean)


def _steps(many: TensorList) -> int:
    """Bits of the longest list that there may be."""
    return max(many.sizes).bit_length()
