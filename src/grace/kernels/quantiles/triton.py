"""Buckets between quantiles as Triton kernels, for the tensors of a bucket.

Quantiles are read from the sorted numbers of all rows. A mean is a sum of its bucket's numbers in their order: they are sorted
by their buckets, which keeps that order, and a program adds up those of a bucket; in what order programs run changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE, Marks, launch
from grace.errors import PayloadError
from grace.kernels.quantiles import BAD_MEAN, bad_code, code_bits, quantile_bytes
from grace.kernels.random_masks import Drawing
from grace.kernels.random_masks.triton import Subsets
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.jobs import add_up, add_up_many
from grace.kernels.tensor_list.triton import adder_at, code_width, numbers_of, so_far, tensor_of, tile_of, wire_of
from grace.kernels.triton import (
    load_code,
    load_float,
    load_number,
    load_sum,
    magnitude,
    mark_if,
    positions_of,
    store_codes,
    store_float,
    store_tile,
    word_of,
)
from grace.kernels.triton.bit_streams import reaching

_LANES = 1024  # numbers that are added side by side


@triton.jit
def ascending_word(word):
    """int32 in the order of the numbers whose bits these are, or of those of such a word: its inverse."""
    return word ^ ((word >> 31) & 0x7FFFFFFF)


@triton.jit
def key_of_row(p, row):
    """int64: what sorts numbers by their rows, and in each by size; both zeros are one."""
    return (row << 32) + ascending_word(word_of(tl.where(p == 0, 0.0, p))).to(tl.int64)


@triton.jit
def _look(
    table, programs, like, marks, shapes, keys,
    HAS_MEMORY: tl.constexpr, HAS_REST: tl.constexpr, EVEN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """``rest = x + e``; marks of rows with what is not finite, with negative, and with other numbers; and the keys of rows
    that are seen entirely.
    """
    row, tile = tile_of(programs)
    x, start = numbers_of(table, row, like, EVEN)
    _place, n = wire_of(table, row)
    seen, head = tl.load(shapes + 2 * row), tl.load(shapes + 2 * row + 1)
    first, lane = tile * TILE, tl.arange(0, TILE)
    left = tl.minimum(n - first, TILE).to(tl.int32)
    inside, full = lane < left, left == TILE
    start += first
    p = load_sum(x + start, tensor_of(table, row, 1, EVEN) + start, lane, inside, HAS_MEMORY, full)
    mark_if(marks + 3 * row, magnitude(p) >= 0x7F800000)
    mark_if(marks + 3 * row + 1, p < 0)
    mark_if(marks + 3 * row + 2, inside & (p >= 0))
    if HAS_REST:
        store_tile(tensor_of(table, row, 2, EVEN) + start + lane, p, inside, full)
    if seen == n:
        store_tile(keys + head + first + lane, key_of_row(p, row), inside, full)


@triton.jit
def _number_at(table, row, like, i, inside, HELD: tl.constexpr, EVEN: tl.constexpr):
    """float32: the sums with the memory at i of a row: of the rests, or if there are none of the xs."""
    x, start = numbers_of(table, row, like, EVEN)
    if HELD:
        x = tensor_of(table, row, 2, EVEN)
    return load_number(x + start, i, inside)


@triton.jit
def _sample(
    table, programs, like, rows, shapes, index, keys, HELD: tl.constexpr, EVEN: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """The keys of rows of which a subset is seen, which ``index`` lists for one after the other. rows: which of all they are,
    and where their lists begin.
    """
    which, tile = tile_of(programs)
    row, begin = tl.load(rows + 2 * which), tl.load(rows + 2 * which + 1)
    seen, head = tl.load(shapes + 2 * row), tl.load(shapes + 2 * row + 1)
    j = tile * TILE + tl.arange(0, TILE)
    p = _number_at(table, row, like, tl.load(index + begin + j, j < seen, 0), j < seen, HELD, EVEN)
    tl.store(keys + head + j, key_of_row(p, row), j < seen)


@triton.jit
def _cut(keys, shapes, marks, edges, zs, q, ZERO_EDGE: tl.constexpr, TELLS: tl.constexpr, SIZE: tl.constexpr):
    """``edges [rows, SIZE]``: of each row q - 1, then inf. keys: ascending. TELLS: ``zs [rows]``, how many buckets hold
    negative numbers, where zero is an edge.
    """
    row = tl.program_id(0).to(tl.int64)
    seen, head = tl.load(shapes + 2 * row), tl.load(shapes + 2 * row + 1)
    j = tl.arange(0, SIZE).to(tl.int64) + 1
    word = (tl.load(keys + head + j * seen // q, j < q, 0) - (row << 32)).to(tl.int32)
    edge = ascending_word(word).to(tl.float32, bitcast=True)
    if ZERO_EDGE:
        negative = reaching(keys + head, row << 32, seen, 0, 0)
        z = tl.minimum(tl.maximum((2 * q * negative + seen) // tl.maximum(2 * seen, 1), 1), q - 1)
        below, above = tl.load(marks + 3 * row + 1) == 0, tl.load(marks + 3 * row + 2) == 0
        edge = tl.where((j == z) & below & above, 0.0, edge)
        if TELLS:
            tl.store(zs + row, tl.where(below & above, z, tl.where(below, q, 0)).to(tl.int32))
    tl.store(edges + row * SIZE + j - 1, tl.where(j < q, edge, float("inf")))


@triton.jit
def bucket_of(edges, p, q, BITS: tl.constexpr):
    """int32: how many of a row's edges are at most p; of an inf the last bucket."""
    code = tl.zeros(p.shape, tl.int32)
    for t in tl.static_range(0, BITS):
        half = (1 << BITS) >> (t + 1)
        code += tl.where(tl.load(edges + code + half - 1) <= p, half, 0)
    return tl.minimum(code, q - 1).to(tl.int32)


@triton.jit
def _encode(
    table, programs, heads, like, edges, wire, cells, q, BITS: tl.constexpr, HELD: tl.constexpr, EVEN: tl.constexpr,
    G: tl.constexpr,
):  # fmt: skip
    """The codes of numbers, and which of the buckets of all rows these are."""
    row, tile = tile_of(programs)
    place, n = wire_of(table, row)
    first, i, counts = positions_of(tile, G, 8)
    inside = counts & (i < n)
    p = _number_at(table, row, like, i, inside, HELD, EVEN)
    code = bucket_of(edges + (row << BITS), p, q, BITS)
    store_codes(wire + place + 4 * q, tl.where(inside, code, 0), first, n, code_width(n, BITS), BITS, G)
    tl.store(cells + tl.load(heads + row) + i, (row * q).to(tl.int32) + code, inside)


@triton.jit
def slack(size, count, LANES: tl.constexpr):
    """float64: how far two sums of ``count`` numbers in float64, whose magnitudes add up to ``size``, may be apart: one number
    after the other, and LANES side by side. Each sum rounds by at most 2**-53 of size for each addition on a number's way.
    """
    return size * (1.01 * count.to(tl.float64) + 2 * LANES) * 1.1102230246251565e-16


@triton.jit
def _summand_at(table, row, like, head, i, inside, HELD: tl.constexpr, LISTED: tl.constexpr, EVEN: tl.constexpr):
    """float64: number i of all rows, of which the row's begin at ``head``; see :func:`_add`."""
    if LISTED:
        p = load_number(like, i, inside)
    else:
        p = _number_at(table, row, like, i - head, inside, HELD, EVEN)
    return p.to(tl.float64)


@triton.jit
def _add(
    table, programs, heads, like, ends, order, wire, means, q,
    HELD: tl.constexpr, LISTED: tl.constexpr, EVEN: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """The mean of a bucket, into the wire and into ``means [rows, q]``. ``order``: the numbers of all rows, those of a bucket
    side by side; ``ends``: how many there are before each bucket. LISTED: these are numbers in ``like`` itself, side by side,
    and no wires are written.

    The mean is that of the sum in the order of the numbers. LANES at a time make another, and all orders agree within a
    bound: where the mean is the same at both of its ends it is the one, else the numbers are added again, in order.
    """
    row, bucket = tile_of(programs)
    head = tl.load(heads + row)
    begin = tl.load(ends + row * q + bucket)
    count = (tl.load(ends + row * q + bucket + 1) - begin).to(tl.int32)
    lane, first = tl.arange(0, LANES), tl.arange(0, 1)
    sums, sizes = tl.zeros((LANES,), tl.float64), tl.zeros((LANES,), tl.float64)
    for t in tl.range(0, count, LANES, loop_unroll_factor=4):  # so that as many loads are under way
        there = t + lane < count
        i = tl.load(order + begin + t + lane, there, head)
        p = _summand_at(table, row, like, head, i, there, HELD, LISTED, EVEN)
        sums += p
        sizes += tl.abs(p)
    total, size = tl.sum(sums, 0), tl.sum(sizes, 0)
    n = tl.maximum(count, 1).to(tl.float64)
    apart = slack(size, count, LANES)
    sure = ((total - apart) / n).to(tl.float32) == ((total + apart) / n).to(tl.float32)
    sure = sure | ~(size < float("inf"))  # what is not finite is not in any order
    chain = tl.zeros((1,), tl.float64)
    for t in tl.range(0, tl.where(sure, 0, count), loop_unroll_factor=16):
        i = tl.load(order + begin + t + first)
        chain += _summand_at(table, row, like, head, i, i >= 0, HELD, LISTED, EVEN)
    mean = (tl.where(sure, total, chain) / n).to(tl.float32)
    if LISTED == 0:
        place, _n = wire_of(table, row)
        store_float(wire + place + 4 * (bucket + first), mean, first == 0)
    tl.store(means + row * q + bucket + first, mean)


@triton.jit
def _drop(table, programs, heads, cells, means, LARGEST: tl.constexpr, EVEN: tl.constexpr, TILE: tl.constexpr):
    """Takes from the rests what the wires say."""
    row, tile = tile_of(programs)
    _place, n = wire_of(table, row)
    first, lane = tile * TILE, tl.arange(0, TILE)
    left = tl.minimum(n - first, TILE).to(tl.int32)
    at = tensor_of(table, row, 2, EVEN) + tl.load(table + 8 * row + 7) + first + lane
    cell = tl.load(cells + tl.load(heads + row) + first + lane, lane < left, 0)
    rest = tl.load(at, lane < left, 0.0) - tl.load(means + cell)
    rest = tl.where(rest > LARGEST, LARGEST, tl.where(rest < -LARGEST, -LARGEST, rest))
    tl.store(at, rest, lane < left)


@triton.jit(do_not_specialize=["weight", "n"])
def _sum(
    table, programs, wires, out, marks, n, W, stride, row_stride, block: tl.constexpr, weight, q,
    BITS: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, ADD: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    out, first, n, base, marks, _nb = adder_at(
        table, programs, wires, out, marks, n, row_stride, block, 2, MANY, EVEN, TILE
    )
    i = first + tl.arange(0, TILE)
    inside, full = i < n, n - first >= TILE
    total = so_far(out, i, n, ADD, full)
    mean = tl.arange(0, 1 << BITS)
    for _ in range(W):
        if first == 0:
            mark_if(marks, magnitude(load_float(base + 4 * mean, mean < q)) >= 0x7F800000)
        code, _good = load_code(base + 4 * q, i, inside, code_width(n, BITS), BITS)
        mark_if(marks + 1, inside & (code >= q))
        total += load_float(base + 4 * code, inside & (code < q)) * weight
        base += stride
    store_tile(out + i, total, inside, full)


def cut_rows(
    keys: Tensor, shapes: Tensor, marks: Tensor, q: int, *, zero_edge: bool, zs: Tensor | None = None
) -> Tensor:
    """float32 ``[rows, 2**bits]``: the edges of rows, of ``keys`` int64, in any order, of the numbers that are seen, and of
    what comes behind. ``shapes [rows, 2]``: how many of each row are seen, and of all rows before it. ``marks [3 rows]``: the
    second and the third of each say whether it has negative numbers, and others. ``zs``: as :func:`_cut` has them.
    """
    size = 1 << code_bits(q)
    edges = torch.empty(len(shapes), size, device=keys.device, dtype=torch.float32)
    launch(_cut, (len(shapes),), torch.sort(keys).values, shapes, marks, edges, zs, q, ZERO_EDGE=zero_edge,
           TELLS=zs is not None, SIZE=size)  # fmt: skip
    return edges


def add_buckets(
    cells: Tensor, many: TensorList, q: int, message: Tensor | None, listed: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(``[rows, q]``: the means of buckets; int64 ``[rows q + 1]``: how many numbers come before each). ``cells`` int32: which
    of all buckets each number is in, or one behind the last. They go to the wires in ``message [s]`` uint8; or without one
    they are those of numbers in ``listed`` float32, side by side as ``cells`` are.
    """
    rows = len(many)
    ascending, order = torch.sort(cells, stable=True)
    every = many.numbers(("every", q), lambda: range(rows * q + 1), torch.int32)
    owned, means = (
        many.pairs(("buckets", q), lambda: [q] * rows),
        torch.empty(rows, q, device=many.device, dtype=torch.float32),
    )
    ends = torch.searchsorted(ascending, every)
    launch(_add, (len(owned),), many.table, owned, many.heads(1), many.like if listed is None else listed, ends, order,
           message, means, q, HELD=many.rests is not None, LISTED=listed is not None, EVEN=many.even,
           LANES=_LANES)  # fmt: skip
    return means, ends


def encode_quantiles_many(
    message: Tensor, many: TensorList, q: int, zero_edge: bool, seen: tuple[int, ...], step: int
) -> Tensor:
    device, tiles, heads, held = many.device, many.tiles(TILE), many.heads(1), many.rests is not None
    bits, shapes, marks = code_bits(q), many.kept(seen), Marks(message, 3 * len(many))
    keys = torch.empty(sum(seen), dtype=torch.int64, device=device)
    launch(_look, (len(tiles),), many.table, tiles, many.like, marks.clean, shapes, keys, EVEN=many.even,
           HAS_MEMORY=many.memories is not None, HAS_REST=held, TILE=TILE)  # fmt: skip
    _sample_rows(keys, many, seen, shapes, step)
    edges = cut_rows(keys, shapes, marks.clean, q, zero_edge=zero_edge)
    cells = torch.empty(sum(many.sizes), dtype=torch.int32, device=device)
    launch(_encode, (len(tiles),), many.table, tiles, heads, many.like, edges, message, cells, q, BITS=bits, HELD=held,
           EVEN=many.even, G=TILE // 8)  # fmt: skip
    means, _ = add_buckets(cells, many, q, message, None)
    if held:
        launch(_drop, (len(tiles),), many.table, tiles, heads, cells, means, LARGEST=torch.finfo(torch.float32).max,
               EVEN=many.even, TILE=TILE)  # fmt: skip
    return many.all_of(marks.clean.view(-1, 3)[:, 0].contiguous())


def _sample_rows(keys: Tensor, many: TensorList, seen: tuple[int, ...], shapes: Tensor, step: int) -> None:
    """The keys of those rows of which a subset is seen."""
    sampled = [row for row, (n, m) in enumerate(zip(many.sizes, seen, strict=True)) if m < n]
    if not sampled:
        return
    counts = [seen[row] for row in sampled]
    begins = [sum(counts[:k]) for k in range(len(counts))]
    drawn = many.once(("sampled", seen), lambda: _drawn(many, sampled, [4 * begin for begin in begins]))
    drawn.point([many.xs[row // many.rows][row % many.rows][None] for row in sampled])
    subsets = Subsets.of(drawn, Drawing(tuple(counts), None))
    subsets.draw(step)
    where = many.numbers(("sampled", seen, "rows"), lambda: _pairs(sampled, begins), torch.int64)
    tiles = drawn.pairs(("sampled", seen), lambda: [-(-count // TILE) for count in counts])
    launch(_sample, (len(tiles),), many.table, tiles, many.like, where, shapes, subsets.index, keys,
           HELD=many.rests is not None, EVEN=many.even, TILE=TILE)  # fmt: skip


def _drawn(many: TensorList, sampled: Sequence[int], places: Sequence[int]) -> TensorList:
    """These rows, each as a tensor of its own, with the stream of its tensor, and where its subset is listed."""
    streams = [many.streams[row // many.rows] for row in sampled]
    return TensorList([many.sizes[row] for row in sampled], places, streams, many.device)


def _pairs(left: Sequence[int], right: Sequence[int]) -> list[int]:
    return [number for pair in zip(left, right, strict=True) for number in pair]


def sum_quantiles(received: Sequence[Tensor], out: Tensor, q: int, weight: float, *, add: bool = False) -> None:
    n, bits = out.shape[1], code_bits(q)
    marks = add_up(_sum, received, out, quantile_bytes(n, q), n, weight, 2, q, BITS=bits, add=add)
    marks.refuse(0, lambda: PayloadError(BAD_MEAN))
    marks.refuse(1, lambda: PayloadError(bad_code(q)))


def sum_quantiles_many(rows: Tensor, many: TensorList, q: int, weight: float) -> Tensor:
    return add_up_many(_sum, rows, many, max(many.sizes), weight, 2, q, BITS=code_bits(q))
