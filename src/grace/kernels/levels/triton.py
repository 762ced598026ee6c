"""Rounding to levels as Triton kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE
from grace.errors import PayloadError
from grace.kernels.levels import quantized_bytes
from grace.kernels.levels.codes import BAD_NORM, bad_code, code_bits
from grace.kernels.many import Many
from grace.kernels.many.jobs import Job, Rows, Tensors, add_up, add_up_many
from grace.kernels.many.triton import adder_at, code_width, encoder_at, so_far
from grace.kernels.statistics.triton import euclidean_norm, euclidean_norm_of_many, largest, largest_of_many
from grace.kernels.triton import (
    load_code,
    load_float,
    load_sum,
    magnitude,
    mark_if,
    negated,
    positions_of,
    round_half_even,
    round_wide_half_even,
    store_codes,
    store_float,
)
from grace.random.triton import lanes_at, lanes_of_tile

if TYPE_CHECKING:
    from grace.random import Stream


@triton.jit(do_not_specialize=["key0", "key1", "step", "shrink"])
def _quantize(
    table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, step, block, norms, shrink,
    S: tl.constexpr, BITS: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, WHOLE: tl.constexpr,
    HAS_MEMORY: tl.constexpr, HAS_REST: tl.constexpr, CLIP: tl.constexpr, G: tl.constexpr, PER: tl.constexpr,
):  # fmt: skip
    """shrink: of many tensors, where theirs lie. CLIP: whether numbers may exceed their norm, and are cut to it."""
    task, tile, x, e, rest, start, n, base, bad, head, nb, key0, key1 = encoder_at(
        table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, block, MANY, EVEN
    )
    if MANY:
        shrink = tl.load(shrink + task)
    first, i, counts = positions_of(tile, G, PER)
    inside = counts & (i < n)
    p = load_sum(x, e, start + i, inside, HAS_MEMORY)
    mark_if(bad, magnitude(p) >= 0x7F800000)
    norm = tl.load(norms + head + i // block, inside, 0.0)
    q = p
    if CLIP:
        q = tl.where(tl.abs(p) <= norm, p, tl.where(p < 0, negated(norm), norm))  # a NaN, too
    zero = norm < 1.1754943508222875e-38
    up = tl.where(norm < 5.421010862427522e-20, 1152921504606846976.0, 1.0)
    levels = tl.zeros_like(norm) + S * 65536.0
    if S > 127:  # with 16 bits more, float32 is exhausted
        y = round_wide_half_even(
            q.to(tl.float64) * tl.where(zero, 0.0, levels.to(tl.float64) / tl.where(zero, 1.0, norm).to(tl.float64))
        )
    else:
        factor = tl.where(zero, 0.0, tl.div_rn(levels, tl.where(zero, 1.0, norm * up)))
        y = round_half_even(q * up * factor)
    if WHOLE:
        lane = lanes_of_tile(key0, key1, step, start + first, G)
    else:
        lane = lanes_at(key0, key1, step, start + i)
    size = ((tl.abs(y) + (0xFFFF - lane)) >> 16).to(tl.int32)
    level = tl.where(y < 0, -size, size)
    level = tl.where(y == 0, 0, level)
    store_codes(base + 4 * nb, tl.where(inside, level + S, 0), first, n, code_width(n, BITS), BITS, G)
    sent = tl.where(zero, 0.0, norm) * shrink
    store_float(base + 4 * (i // block), sent, inside & (i % block == 0))
    if HAS_REST:
        worth = tl.div_rn(sent, tl.zeros_like(norm) + S * 1.0)
        tl.store(rest + start + i, p - level.to(tl.float32) * worth, inside)


# Nor n: of an n that is known to be 1, pairs of codes are half used, and ptxas 12.8 forgets to subtract S from the other half.
@triton.jit(do_not_specialize=["weight", "n"])
def _dequantize_sum(
    table, programs, wires, out, marks, n, W, stride, row_stride, block, weight,
    S: tl.constexpr, BITS: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, ADD: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    out, i, n, base, marks, nb = adder_at(table, programs, wires, out, marks, n, row_stride, block, 2, MANY, EVEN, TILE)
    inside, total, width = i < n, so_far(out, i, n, ADD), code_width(n, BITS)
    for _ in range(W):
        norm = load_float(base + 4 * (i // block), inside)
        mark_if(marks, ((norm >= 0) & (norm < float("inf"))) == 0)
        code, good = load_code(base + 4 * nb, i, inside, width, BITS)
        mark_if(marks + 1, ((code > 2 * S) | (good == 0)) & inside)
        factor = tl.div_rn(norm, tl.zeros_like(norm) + S * 1.0) * weight
        total += (code - S).to(tl.float32) * factor
        base += stride
    tl.store(out + i, total, inside)


def quantize(
    rows: Tensor,
    s: int,
    block: int,
    norm: Literal["linf", "l2"],
    shrink: float,
    rng: Stream,
    memory: Tensor | None = None,
    rest: Tensor | None = None,
) -> Any:
    return _write(Rows(rows, memory, rest, quantized_bytes(rows.shape[1], s, block), rng), s, block, norm, shrink)


def quantize_many(
    message: Tensor,
    many: Many,
    s: int,
    block: int,
    norm: Literal["linf", "l2"],
    shrink: Callable[[int], float],
    step: int,
    clip: float = 0.0,
) -> Any:
    job = Tensors(message, many, step)
    return _write(job, s, block, norm, job.each(shrink), clip)


def _write(job: Job, s: int, block: int, norm: str, shrink: float | Tensor, clip: float = 0.0) -> Any:
    how = (largest, largest_of_many) if norm == "linf" else (euclidean_norm, euclidean_norm_of_many)
    norms, per = job.reduce(*how, block), 5 if s == 1 else 8
    if clip and isinstance(job, Tensors):
        norms = _cut(norms, job.many, block, clip)
    return job.encode(
        _quantize,
        block,
        norms,
        shrink,
        per=per,
        tells_whole=True,
        S=s,
        BITS=_bits(s),
        CLIP=clip > 0,
        G=TILE // 8,
        PER=per,
    )


def _cut(norms: Tensor, many: Many, block: int, clip: float) -> Tensor:
    """Of the largest magnitudes ``[blocks]`` of all blocks those of numbers that are cut to ``clip`` deviations: no number
    that is cut exceeds them. 0 where a tensor is not finite.
    """
    limit = euclidean_norm_of_many(many, block) / many.roots(block) * clip
    owners = many.owners(block)
    bad = owners.new_zeros(len(many)).index_add_(0, owners, norms.isfinite().logical_not_().long())
    return torch.minimum(norms, limit).masked_fill_(bad[owners] > 0, 0.0)


def dequantize_sum(
    received: Sequence[Tensor], out: Tensor, s: int, block: int, weight: float, *, add: bool = False
) -> Any:
    width = quantized_bytes(out.shape[1], s, block)
    marks = add_up(_dequantize_sum, received, out, width, block, weight, 2, add=add, S=s, BITS=_bits(s))
    marks.refuse(0, lambda: PayloadError(BAD_NORM))
    marks.refuse(1, lambda: PayloadError(bad_code(s)))
    return None


def dequantize_sum_many(rows: Tensor, many: Many, s: int, block: int, weight: float) -> Any:
    return add_up_many(_dequantize_sum, rows, many, block, weight, 2, S=s, BITS=_bits(s))


def _bits(s: int) -> int:
    return code_bits(s) if s > 1 else 0  # base 3
