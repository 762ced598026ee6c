"""Floats of 8 bits as Triton kernels. They are rounded by integers: casts to them differ between devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl
from torch import Tensor

from grace.errors import PayloadError
from grace.flags.finite import Flag
from grace.kernels.blocks import fits_tile
from grace.kernels.fp8 import BAD_CODE, BAD_SCALE, FloatFormat, float_bytes
from grace.kernels.statistics.triton import largest, largest_of_many
from grace.kernels.stochastic_levels import MOST
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.jobs import Job, Rows, Tensors, add_up, add_up_many, span_of
from grace.kernels.tensor_list.triton import adder_at, encoder_at, so_far
from grace.kernels.triton import (
    load_tile,
    magnitude,
    mark_if,
    negated,
    power_of_two_as_float,
    round_half_even,
    store_tile,
)
from grace.kernels.triton.tiles import (
    fields_of_blocks,
    left_of,
    of_blocks,
    spread,
    store_fields,
    sum_of_tile,
    tops_of_blocks,
)
from grace.random.triton import lanes_at, lanes_of_tile

if TYPE_CHECKING:
    from grace.random import Stream


@triton.jit
def _code_of(y, FRACTION: tl.constexpr, LEAST: tl.constexpr):
    """int32 in [0, 256): the number of the format nearest to y, of two equally near ones the even one; y is in its range."""
    size = magnitude(y)
    word = size + ((1 << (22 - FRACTION)) - 1) + ((size >> (23 - FRACTION)) & 1)
    normal = (word >> (23 - FRACTION)) - ((126 + LEAST) << FRACTION)
    small = round_half_even(tl.abs(y) * power_of_two_as_float(tl.zeros_like(size) + FRACTION - LEAST))
    code = tl.where(size >= ((127 + LEAST) << 23), normal, small)
    return code | ((y.to(tl.int32, bitcast=True) >> 24) & 0x80)


@triton.jit
def _value_of(code, FRACTION: tl.constexpr, LEAST: tl.constexpr):
    """(float32: the numbers of codes int32 in [0, 256), whether they are finite)."""
    size = code & 0x7F
    normal = ((size << (23 - FRACTION)) + ((126 + LEAST) << 23)).to(tl.float32, bitcast=True)
    small = size.to(tl.float32) * power_of_two_as_float(tl.zeros_like(size) + LEAST - FRACTION)
    value = tl.where(size >= (1 << FRACTION), normal, small)
    finite = size < (0x7F if FRACTION == 3 else 0x7C)
    return tl.where(code >= 0x80, negated(value), value), finite


@triton.jit
def _round_at_random(y, lane, FRACTION: tl.constexpr, LEAST: tl.constexpr):
    """Numbers on the grid of the format: y rounded up or down by the lane."""
    exponent = tl.maximum((magnitude(y) >> 23) - 127, LEAST) - FRACTION  # of the spacing at y
    size = tl.abs(y) * power_of_two_as_float(-exponent)
    near = round_half_even(size).to(tl.float32)
    low = near - tl.where(near > size, 1.0, 0.0)
    u = (lane.to(tl.float32) + 0.5) * 0.0000152587890625
    level = low + tl.where(u < size - low, 1.0, 0.0)
    level = tl.where(tl.abs(size - near) <= tl.maximum(size, 1.0) * 1e-6, near, level)
    level = level * power_of_two_as_float(exponent)
    return tl.where(y.to(tl.int32, bitcast=True) < 0, negated(level), level)


@triton.jit(do_not_specialize=["n", "key0", "key1", "step"])
def _encode(
    table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, step, block: tl.constexpr, tops,
    FRACTION: tl.constexpr, LEAST: tl.constexpr, LARGEST: tl.constexpr, MOST: tl.constexpr, RANDOM: tl.constexpr,
    MANY: tl.constexpr, EVEN: tl.constexpr, WHOLE: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_REST: tl.constexpr,
    FINDS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """FINDS: whether blocks are in this tile, which finds what is largest in them."""
    _task, tile, x, e, rest, start, n, base, bad, head, nb, key0, key1 = encoder_at(
        table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, block, MANY, EVEN
    )
    lane = tl.arange(0, TILE)
    first, begin, inside, full, p = sum_of_tile(x, e, bad, tile, start, n, lane, HAS_MEMORY, TILE)
    if FINDS:
        top = tops_of_blocks(magnitude(p), block, TILE).to(tl.float32, bitcast=True)
    else:
        top = of_blocks(tops + head, first, lane, inside, n, block, TILE)
    top = tl.minimum(top, MOST)
    scale = tl.div_rn(top, tl.zeros_like(top) + LARGEST)
    scale = tl.where(scale < 1.1754943508222875e-38, 0.0, scale)
    store_fields(base, scale, first, lane, inside, n, block, TILE)
    scale = spread(scale, first, lane, block, TILE)
    live = scale > 0
    y = tl.where(live, tl.div_rn(p, tl.where(live, scale, 1.0)), 0.0)
    if RANDOM:
        if WHOLE:
            drawn = tl.reshape(lanes_of_tile(key0, key1, step, begin, TILE // 8), (TILE,))
        else:
            drawn = lanes_at(key0, key1, step, begin + lane)
        y = _round_at_random(y, drawn, FRACTION, LEAST)
    y = tl.where(tl.abs(y) > LARGEST, tl.where(y > 0, LARGEST, -LARGEST), y)
    code = _code_of(y, FRACTION, LEAST)
    store_tile(base + 4 * nb + first + lane, code.to(tl.uint8), inside, full)
    if HAS_REST:
        decoded, _finite = _value_of(code, FRACTION, LEAST)
        store_tile(rest + begin + lane, p - decoded * scale, inside, full)


@triton.jit(do_not_specialize=["weight", "n"])
def _sum(
    table, programs, wires, out, marks, n, W, stride, row_stride, block: tl.constexpr, weight,
    FRACTION: tl.constexpr, LEAST: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, ADD: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    out, first, n, base, marks, nb = adder_at(
        table, programs, wires, out, marks, n, row_stride, block, 2, MANY, EVEN, TILE
    )
    out, lane, left = out + first, tl.arange(0, TILE), left_of(n, first, TILE)
    inside, full = lane < left, left == TILE
    total, legal, fine = so_far(out, lane, left, ADD, full), lane >= 0, lane >= 0
    for _ in range(W):
        scale = spread(fields_of_blocks(base, first, lane, inside, n, block, TILE), first, lane, block, TILE)
        code = load_tile(base + 4 * nb + first + lane, inside, full).to(tl.int32)
        value, finite = _value_of(code, FRACTION, LEAST)
        legal = legal & finite
        value = value * scale
        fine = fine & (scale >= 0) & (scale < float("inf")) & (tl.abs(value) < float("inf"))
        total += value * weight
        base += stride
    mark_if(marks, (legal == 0) & inside)
    mark_if(marks + 1, (fine == 0) & inside)
    store_tile(out + lane, total, inside, full)


def encode_floats(
    rows: Tensor,
    kind: FloatFormat,
    block: int,
    rng: Stream | None,
    memory: Tensor | None = None,
    rest: Tensor | None = None,
) -> tuple[Tensor, Flag]:
    job = Rows(rows, memory, rest, float_bytes(rows.shape[1], block), rng)
    out: tuple[Tensor, Flag] = _write(job, kind, block, rng is not None)
    return out


def encode_floats_many(message: Tensor, many: TensorList, kind: FloatFormat, block: int, step: int | None) -> Tensor:
    out: Tensor = _write(Tensors(message, many, step), kind, block, step is not None)
    return out


def _write(job: Job, kind: FloatFormat, block: int, random: bool) -> Any:
    finds = fits_tile(block)
    tops, tile = None if finds else job.reduce(largest, largest_of_many, block), span_of(block, whole=finds)
    return job.encode(
        _encode, block, tops, tells_whole=True,
        FRACTION=kind.m, LEAST=kind.least, LARGEST=kind.F, MOST=MOST, RANDOM=random, FINDS=finds, tile=tile,
        TILE=tile,
    )  # fmt: skip


def sum_floats(
    received: Sequence[Tensor], out: Tensor, kind: FloatFormat, block: int, weight: float, *, add: bool = False
) -> None:
    width = float_bytes(out.shape[1], block)
    marks = add_up(_sum, received, out, width, block, weight, 2, add=add, FRACTION=kind.m, LEAST=kind.least)
    marks.refuse(0, lambda: PayloadError(BAD_CODE))
    marks.refuse(1, lambda: PayloadError(BAD_SCALE))


def sum_floats_many(rows: Tensor, many: TensorList, kind: FloatFormat, block: int, weight: float) -> Tensor:
    return add_up_many(_sum, rows, many, block, weight, 2, FRACTION=kind.m, LEAST=kind.least)
