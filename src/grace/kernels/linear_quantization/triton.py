"""Fixed-point numbers as Triton kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl
from torch import Tensor

from grace.errors import PayloadError
from grace.flags.finite import Flag
from grace.kernels.blocks import fits_tile
from grace.kernels.linear_quantization import BAD_UNIT, FixedPoint, bad_code
from grace.kernels.statistics.triton import largest, largest_of_many
from grace.kernels.stochastic_levels import MOST
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.jobs import Job, Rows, Tensors, add_up, add_up_many, span_of
from grace.kernels.tensor_list.triton import adder_at, code_width, encoder_at, so_far
from grace.kernels.triton import magnitude, mark_if, round_half_even, store_codes, store_tile
from grace.kernels.triton.tiles import (
    fields_of_blocks,
    lanes_of,
    left_of,
    load_codes,
    of_blocks,
    spread,
    store_fields,
    sum_of_tile,
    tops_of_blocks,
)
from grace.random.triton import lanes_at, lanes_of_tile

if TYPE_CHECKING:
    from grace.random import Stream


@triton.jit(do_not_specialize=["n", "key0", "key1", "step", "share", "most", "shrink"])
def _encode(
    table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, step, block: tl.constexpr, tops, share, most,
    shrink,
    BITS: tl.constexpr, LEAST: tl.constexpr, RANDOM: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr,
    WHOLE: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_REST: tl.constexpr, FINDS: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    """shrink: of many tensors, where theirs lie. FINDS: whether blocks are in this tile, which finds what is largest in
    them.
    """
    task, tile, x, e, rest, start, n, base, bad, head, nb, key0, key1 = encoder_at(
        table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, block, MANY, EVEN
    )
    if MANY:
        shrink = tl.load(shrink + task)
    SPAN: tl.constexpr = G * 8
    lane = lanes_of(G, 8)
    first, begin, inside, full, p = sum_of_tile(x, e, bad, tile, start, n, lane, HAS_MEMORY, SPAN)
    if FINDS:
        top = tops_of_blocks(magnitude(p), block, SPAN).to(tl.float32, bitcast=True)
    else:
        top = of_blocks(tops + head, first, lane, inside, n, block, SPAN)
    unit = top * share
    unit = tl.where(unit > most, most, unit)
    unit = tl.where(unit < 1.1754943508222875e-38, 0.0, unit)
    sent = tl.div_rn(unit, tl.zeros_like(unit) + shrink)
    store_fields(base, sent, first, lane, inside, n, block, SPAN)
    unit = spread(unit, first, lane, block, SPAN)
    live = unit > 0
    y = tl.where(live, tl.div_rn(p, tl.where(live, unit, 1.0)), 0.0)
    MOST: tl.constexpr = (1 << (BITS - 1)) - 1
    y = tl.where(y > MOST, MOST * 1.0, tl.where(y < -LEAST, -LEAST * 1.0, y))
    size = tl.abs(y)
    level = round_half_even(size)
    if RANDOM:
        if WHOLE:
            drawn = lanes_of_tile(key0, key1, step, begin, G)
        else:
            drawn = lanes_at(key0, key1, step, begin + lane)
        near = level.to(tl.float32)
        low = near - tl.where(near > size, 1.0, 0.0)
        u = (drawn.to(tl.float32) + 0.5) * 0.0000152587890625
        chosen = low + tl.where(u < size - low, 1.0, 0.0)
        level = tl.where(tl.abs(size - near) <= tl.maximum(size, 1.0) * 1e-6, near, chosen).to(tl.int32)
    code = tl.where(y < 0, -level, level)
    store_codes(base + 4 * nb, tl.where(inside, code + MOST + 1, 0), first, n, code_width(n, BITS), BITS, G)
    if HAS_REST:
        decoded = code.to(tl.float32) * spread(sent, first, lane, block, SPAN)
        store_tile(rest + begin + lane, p - decoded, inside, full)


@triton.jit(do_not_specialize=["weight", "n"])
def _sum(
    table, programs, wires, out, marks, n, W, stride, row_stride, block: tl.constexpr, weight,
    BITS: tl.constexpr, SYMMETRIC: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, ADD: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    out, first, n, base, marks, nb = adder_at(
        table, programs, wires, out, marks, n, row_stride, block, 2, MANY, EVEN, TILE
    )
    out, lane, left = out + first, tl.arange(0, TILE), left_of(n, first, TILE)
    inside, full = lane < left, left == TILE
    total, width = so_far(out, lane, left, ADD, full), code_width(n, BITS)
    least, fine = tl.full((TILE,), 1, tl.int32), lane >= 0
    for _ in range(W):
        unit = spread(fields_of_blocks(base, first, lane, inside, n, block, TILE), first, lane, block, TILE)
        code, _good = load_codes(base + 4 * nb, first, lane, inside, width, BITS)
        least = tl.minimum(least, code)
        value = (code - (1 << (BITS - 1))).to(tl.float32) * unit
        fine = fine & (unit >= 0) & (unit < float("inf")) & (tl.abs(value) < float("inf"))
        total += value * weight
        base += stride
    if SYMMETRIC:
        mark_if(marks, (least < 1) & inside)
    mark_if(marks + 1, (fine == 0) & inside)
    store_tile(out + lane, total, inside, full)


def encode_fixed(
    rows: Tensor, code: FixedPoint, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, Flag]:
    job = Rows(rows, memory, rest, code.payload(rows.shape[1]), None if code.nearest else rng)
    out: tuple[Tensor, Flag] = _write(job, code)
    return out


def encode_fixed_many(message: Tensor, many: TensorList, code: FixedPoint, step: int) -> Tensor:
    out: Tensor = _write(Tensors(message, many, None if code.nearest else step), code)
    return out


def _write(job: Job, code: FixedPoint) -> Any:
    block, finds = code.block, fits_tile(code.block)
    tops, tile = None if finds else job.reduce(largest, largest_of_many, block), span_of(block, whole=finds)
    return job.encode(
        _encode,
        block,
        tops,
        code.clip / code.q,
        MOST / code.least,
        job.each(code, code.divisor),
        tells_whole=True,
        BITS=code.bits,
        LEAST=code.least,
        RANDOM=not code.nearest,
        FINDS=finds,
        tile=tile,
        G=tile // 8,
    )


def sum_fixed(received: Sequence[Tensor], out: Tensor, code: FixedPoint, weight: float, *, add: bool = False) -> None:
    width, symmetric = code.payload(out.shape[1]), code.clip == 1
    marks = add_up(_sum, received, out, width, code.block, weight, 2, add=add, BITS=code.bits, SYMMETRIC=symmetric)
    marks.refuse(0, lambda: PayloadError(bad_code(code.bits)))
    marks.refuse(1, lambda: PayloadError(BAD_UNIT))


def sum_fixed_many(rows: Tensor, many: TensorList, code: FixedPoint, weight: float) -> Tensor:
    return add_up_many(_sum, rows, many, code.block, weight, 2, BITS=code.bits, SYMMETRIC=code.clip == 1)
