"""Rounding to levels as Triton kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.errors import PayloadError
from grace.kernels.blocks import fits_tile
from grace.kernels.statistics.triton import euclidean_norm, euclidean_norm_of_many, largest, largest_of_many
from grace.kernels.stochastic_levels import Levels
from grace.kernels.stochastic_levels.codes import BAD_NORM, bad_code, code_bits
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.jobs import Job, Rows, Tensors, add_up, add_up_many, span_of
from grace.kernels.tensor_list.triton import adder_at, code_width, encoder_at, so_far
from grace.kernels.triton import (
    magnitude,
    mark_if,
    negated,
    round_half_even,
    round_wide_half_even,
    store_codes,
    store_tile,
)
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


@triton.jit(do_not_specialize=["n", "key0", "key1", "step", "shrink"])
def _quantize(
    table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, step, block: tl.constexpr, norms, shrink,
    S: tl.constexpr, BITS: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, WHOLE: tl.constexpr,
    HAS_MEMORY: tl.constexpr, HAS_REST: tl.constexpr, CLIP: tl.constexpr, FINDS: tl.constexpr, G: tl.constexpr,
    PER: tl.constexpr,
):  # fmt: skip
    """shrink: of many tensors, where theirs lie. CLIP: whether numbers may exceed their norm, and are cut to it.

    FINDS: whether the norm is the largest magnitude of a block in this tile.
    """
    task, tile, x, e, rest, start, n, base, bad, head, nb, key0, key1 = encoder_at(
        table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, block, MANY, EVEN
    )
    if MANY:
        shrink = tl.load(shrink + task)
    SPAN: tl.constexpr = G * PER
    lane = lanes_of(G, PER)
    first, begin, inside, full, p = sum_of_tile(x, e, bad, tile, start, n, lane, HAS_MEMORY, SPAN)
    if FINDS:
        norm = tops_of_blocks(magnitude(p), block, SPAN).to(tl.float32, bitcast=True)
    else:
        norm = of_blocks(norms + head, first, lane, inside, n, block, SPAN)
    zero = norm < 1.1754943508222875e-38
    up = tl.where(norm < 5.421010862427522e-20, 1152921504606846976.0, 1.0)
    levels = tl.zeros_like(norm) + S * 65536.0
    sent = tl.where(zero, 0.0, norm) * shrink
    store_fields(base, sent, first, lane, inside, n, block, SPAN)
    q = p
    if CLIP:
        top = spread(norm, first, lane, block, SPAN)
        q = tl.where(tl.abs(p) <= top, p, tl.where(p < 0, negated(top), top))  # a NaN, too
    if S > 127:  # with 16 bits more, float32 is exhausted
        factor = tl.where(zero, 0.0, levels.to(tl.float64) / tl.where(zero, 1.0, norm).to(tl.float64))
        y = round_wide_half_even(q.to(tl.float64) * spread(factor, first, lane, block, SPAN))
    else:
        factor = tl.where(zero, 0.0, tl.div_rn(levels, tl.where(zero, 1.0, norm * up)))
        y = round_half_even(q * spread(up, first, lane, block, SPAN) * spread(factor, first, lane, block, SPAN))
    if WHOLE:
        drawn = lanes_of_tile(key0, key1, step, begin, G)
    else:
        drawn = lanes_at(key0, key1, step, begin + lane)
    size = ((tl.abs(y) + (0xFFFF - drawn)) >> 16).to(tl.int32)
    level = tl.where(y < 0, -size, size)
    level = tl.where(y == 0, 0, level)
    store_codes(base + 4 * nb, tl.where(inside, level + S, 0), first, n, code_width(n, BITS), BITS, G)
    if HAS_REST:
        worth = spread(tl.div_rn(sent, tl.zeros_like(norm) + S * 1.0), first, lane, block, SPAN)
        store_tile(rest + begin + lane, p - level.to(tl.float32) * worth, inside, full)


@triton.jit(do_not_specialize=["weight", "n"])
def _dequantize_sum(
    table, programs, wires, out, marks, n, W, stride, row_stride, block: tl.constexpr, weight,
    S: tl.constexpr, BITS: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, ADD: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    out, first, n, base, marks, nb = adder_at(
        table, programs, wires, out, marks, n, row_stride, block, 2, MANY, EVEN, TILE
    )
    out, lane, left = out + first, tl.arange(0, TILE), left_of(n, first, TILE)
    inside, full = lane < left, left == TILE
    total, width = so_far(out, lane, left, ADD, full), code_width(n, BITS)
    wrong, most = tl.full((1,), 0, tl.int32), tl.zeros((TILE,), tl.int32)
    for _ in range(W):
        norm = fields_of_blocks(base, first, lane, inside, n, block, TILE)
        wrong = tl.maximum(wrong, tl.max((((norm >= 0) & (norm < float("inf"))) == 0).to(tl.int32), 0))
        code, good = load_codes(base + 4 * nb, first, lane, inside, width, BITS)
        most = tl.maximum(most, tl.where(good, code, 2 * S + 1))
        factor = tl.div_rn(norm, tl.zeros_like(norm) + S * 1.0) * weight
        total += (code - S).to(tl.float32) * spread(factor, first, lane, block, TILE)
        base += stride
    mark_if(marks, wrong > 0)
    mark_if(marks + 1, (most > 2 * S) & inside)
    store_tile(out + lane, total, inside, full)


def quantize(
    rows: Tensor, levels: Levels, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
) -> Any:
    return _write(Rows(rows, memory, rest, levels.payload(rows.shape[1]), rng), levels)


def quantize_many(message: Tensor, many: TensorList, levels: Levels, step: int, clip: float = 0.0) -> Any:
    return _write(Tensors(message, many, step), levels, clip)


def _write(job: Job, levels: Levels, clip: float = 0.0) -> Any:
    s, block, norm, _ = levels
    how = (largest, largest_of_many) if norm == "linf" else (euclidean_norm, euclidean_norm_of_many)
    per, finds = 5 if s == 1 else 8, s > 1 and norm == "linf" and not clip and fits_tile(block)
    norms, tile = None if finds else job.reduce(*how, block), span_of(block, whole=finds)
    if clip and isinstance(job, Tensors):
        norms = _cut(norms, job.many, block, clip)
    return job.encode(
        _quantize,
        block,
        norms,
        job.each(levels, levels.factor),
        per=per,
        tells_whole=True,
        tile=tile,
        S=s,
        BITS=_bits(s),
        CLIP=clip > 0,
        FINDS=finds,
        G=tile // 8,
        PER=per,
    )


def _cut(norms: Tensor, many: TensorList, block: int, clip: float) -> Tensor:
    """Largest magnitudes ``[blocks]`` of all blocks, of numbers that are cut to ``clip`` deviations: no number
    that is cut exceeds them. 0 where a tensor is not finite.
    """
    limit = euclidean_norm_of_many(many, block) / many.roots(block) * clip
    owners = many.owners(block)
    bad = owners.new_zeros(len(many)).index_add_(0, owners, norms.isfinite().logical_not_().long())
    return torch.minimum(norms, limit).masked_fill_(bad[owners] > 0, 0.0)


def dequantize_sum(received: Sequence[Tensor], out: Tensor, levels: Levels, weight: float, *, add: bool = False) -> Any:
    s, block, width = levels.s, levels.block, levels.payload(out.shape[1])
    marks = add_up(_dequantize_sum, received, out, width, block, weight, 2, add=add, S=s, BITS=_bits(s))
    marks.refuse(0, lambda: PayloadError(BAD_NORM))
    marks.refuse(1, lambda: PayloadError(bad_code(s)))
    return None


def dequantize_sum_many(rows: Tensor, many: TensorList, levels: Levels, weight: float) -> Any:
    return add_up_many(_dequantize_sum, rows, many, levels.block, weight, 2, S=levels.s, BITS=_bits(levels.s))


def _bits(s: int) -> int:
    return code_bits(s) if s > 1 else 0  # base 3
