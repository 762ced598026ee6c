"""Codes between the least and the largest number of a block as Triton kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl
from torch import Tensor

from grace.errors import PayloadError
from grace.flags.finite import Flag
from grace.kernels.affine import BAD_RANGE, affine_bytes
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.jobs import Job, Rows, Tensors, add_up, add_up_many, span_of
from grace.kernels.tensor_list.triton import adder_at, code_width, encoder_at, so_far
from grace.kernels.triton import mark_if, negated, round_half_even, store_codes, store_tile
from grace.kernels.triton.tiles import (
    fields_of_blocks,
    lanes_of,
    least_of_blocks,
    left_of,
    load_codes,
    spread,
    store_fields,
    sum_of_tile,
)
from grace.random.triton import lanes_at, lanes_of_tile

if TYPE_CHECKING:
    from grace.random import Stream


@triton.jit
def _within_range(x):
    """Numbers beyond 2**126 as that, with their signs."""
    x = tl.where(x > 8.507059173023462e37, 8.507059173023462e37, x)
    return tl.where(x < -8.507059173023462e37, -8.507059173023462e37, x)


@triton.jit(do_not_specialize=["n", "key0", "key1", "step"])
def _encode(
    table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, step, block: tl.constexpr,
    BITS: tl.constexpr, RANDOM: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, WHOLE: tl.constexpr,
    HAS_MEMORY: tl.constexpr, HAS_REST: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    _task, tile, x, e, rest, start, n, base, bad, _head, nb, key0, key1 = encoder_at(
        table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, block, MANY, EVEN
    )
    SPAN: tl.constexpr = G * 8
    Q: tl.constexpr = (1 << BITS) - 1
    lane = lanes_of(G, 8)
    first, begin, inside, full, p = sum_of_tile(x, e, bad, tile, start, n, lane, HAS_MEMORY, SPAN)
    least = _within_range(least_of_blocks(p, inside, block, SPAN)) + 0.0  # not -0
    most = _within_range(negated(least_of_blocks(negated(p), inside, block, SPAN)))
    unit = tl.div_rn(most - least, tl.zeros_like(least) + Q * 1.0)
    unit = tl.where(unit >= 1.1754943508222875e-38, unit, 0.0)
    store_fields(base, least, first, lane, inside, n, block, SPAN, 8)
    store_fields(base + 4, unit, first, lane, inside, n, block, SPAN, 8)
    least, unit = spread(least, first, lane, block, SPAN), spread(unit, first, lane, block, SPAN)
    y = tl.div_rn(p - least, tl.where(unit > 0, unit, 1.0))
    level = round_half_even(tl.where(y > Q, Q * 1.0, tl.where(y > 0, y, 0.0)) * 32768.0)
    if RANDOM:
        if WHOLE:
            drawn = lanes_of_tile(key0, key1, step, begin, G)
        else:
            drawn = lanes_at(key0, key1, step, begin + lane)
        level += 0x7FFF - (drawn >> 1)
    else:
        level += 0x4000
    code = level >> 15
    store_codes(base + 8 * nb, tl.where(inside, code, 0), first, n, code_width(n, BITS), BITS, G)
    if HAS_REST:
        store_tile(rest + begin + lane, p - (code.to(tl.float32) * unit + least), inside, full)


@triton.jit(do_not_specialize=["weight", "n"])
def _sum(
    table, programs, wires, out, marks, n, W, stride, row_stride, block: tl.constexpr, weight,
    BITS: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, ADD: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    out, first, n, base, marks, nb = adder_at(
        table, programs, wires, out, marks, n, row_stride, block, 1, MANY, EVEN, TILE
    )
    out, lane, left = out + first, tl.arange(0, TILE), left_of(n, first, TILE)
    inside, full = lane < left, left == TILE
    total, wrong = so_far(out, lane, left, ADD, full), tl.full((1,), 0, tl.int32)
    for _ in range(W):
        least = fields_of_blocks(base, first, lane, inside, n, block, TILE, 8)
        unit = fields_of_blocks(base + 4, first, lane, inside, n, block, TILE, 8)
        reach = unit * ((1 << BITS) - 1)
        legal = (tl.abs(least) <= 8.507059173023462e37) & (reach >= 0) & (reach <= 1.7014134571974606e38)
        wrong = tl.maximum(wrong, tl.max((legal == 0).to(tl.int32), 0))
        code, _good = load_codes(base + 8 * nb, first, lane, inside, code_width(n, BITS), BITS)
        value = code.to(tl.float32) * spread(unit * weight, first, lane, block, TILE)
        total += value + spread(least * weight, first, lane, block, TILE)
        base += stride
    mark_if(marks, wrong > 0)
    store_tile(out + lane, total, inside, full)


def encode_affine(
    rows: Tensor, bits: int, block: int, rng: Stream | None, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, Flag]:
    job = Rows(rows, memory, rest, affine_bytes(rows.shape[1], bits, block), rng)
    out: tuple[Tensor, Flag] = _write(job, bits, block, rng is not None)
    return out


def encode_affine_many(message: Tensor, many: TensorList, bits: int, block: int, step: int | None) -> Tensor:
    out: Tensor = _write(Tensors(message, many, step), bits, block, step is not None)
    return out


def _write(job: Job, bits: int, block: int, random: bool) -> Any:
    tile = span_of(block, whole=True)
    return job.encode(_encode, block, tells_whole=True, BITS=bits, RANDOM=random, tile=tile, G=tile // 8)


def sum_affine(
    received: Sequence[Tensor], out: Tensor, bits: int, block: int, weight: float, *, add: bool = False
) -> None:
    marks = add_up(_sum, received, out, affine_bytes(out.shape[1], bits, block), block, weight, 1, add=add, BITS=bits)
    marks.refuse(0, lambda: PayloadError(BAD_RANGE))


def sum_affine_many(rows: Tensor, many: TensorList, bits: int, block: int, weight: float) -> Tensor:
    return add_up_many(_sum, rows, many, block, weight, 1, BITS=bits)
