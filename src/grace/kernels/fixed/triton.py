"""Fixed-point numbers as Triton kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE
from grace.errors import PayloadError
from grace.flags.finite import Flag
from grace.kernels.fixed import BAD_UNIT, bad_code, fixed_bytes
from grace.kernels.levels import MOST
from grace.kernels.many import Many
from grace.kernels.many.jobs import Job, Rows, Tensors, add_up, add_up_many
from grace.kernels.many.triton import adder_at, code_width, encoder_at, so_far
from grace.kernels.statistics.triton import largest, largest_of_many
from grace.kernels.triton import (
    load_code,
    load_float,
    load_sum,
    magnitude,
    mark_if,
    positions_of,
    round_half_even,
    store_codes,
    store_float,
)
from grace.random.triton import lanes_at, lanes_of_tile

if TYPE_CHECKING:
    from grace.random import Stream


@triton.jit(do_not_specialize=["key0", "key1", "step", "share", "most", "shrink"])
def _encode(
    table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, step, block, tops, share, most, shrink,
    BITS: tl.constexpr, LEAST: tl.constexpr, RANDOM: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr,
    WHOLE: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_REST: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    """shrink: of many tensors, where theirs lie."""
    task, tile, x, e, rest, start, n, base, bad, head, nb, key0, key1 = encoder_at(
        table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, block, MANY, EVEN
    )
    if MANY:
        shrink = tl.load(shrink + task)
    first, i, counts = positions_of(tile, G, 8)
    inside = counts & (i < n)
    p = load_sum(x, e, start + i, inside, HAS_MEMORY)
    mark_if(bad, magnitude(p) >= 0x7F800000)
    k = i // block
    unit = tl.load(tops + head + k, inside, 0.0) * share
    unit = tl.where(unit > most, most, unit)
    unit = tl.where(unit < 1.1754943508222875e-38, 0.0, unit)
    live = unit > 0
    y = tl.where(live, tl.div_rn(p, tl.where(live, unit, 1.0)), 0.0)
    top = (1 << (BITS - 1)) - 1
    y = tl.where(y > top, top * 1.0, tl.where(y < -LEAST, -LEAST * 1.0, y))
    size = tl.abs(y)
    level = round_half_even(size)
    if RANDOM:
        if WHOLE:
            lane = lanes_of_tile(key0, key1, step, start + first, G)
        else:
            lane = lanes_at(key0, key1, step, start + i)
        near = level.to(tl.float32)
        low = near - tl.where(near > size, 1.0, 0.0)
        u = (lane.to(tl.float32) + 0.5) * 0.0000152587890625
        drawn = low + tl.where(u < size - low, 1.0, 0.0)
        level = tl.where(tl.abs(size - near) <= tl.maximum(size, 1.0) * 1e-6, near, drawn).to(tl.int32)
    code = tl.where(y < 0, -level, level)
    store_codes(base + 4 * nb, tl.where(inside, code + top + 1, 0), first, n, code_width(n, BITS), BITS, G)
    sent = tl.div_rn(unit, tl.zeros_like(unit) + shrink)
    store_float(base + 4 * k, sent, inside & (i % block == 0))
    if HAS_REST:
        tl.store(rest + start + i, p - code.to(tl.float32) * sent, inside)


@triton.jit(do_not_specialize=["weight"])
def _sum(
    table, programs, wires, out, marks, n, W, stride, row_stride, block, weight,
    BITS: tl.constexpr, SYMMETRIC: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, ADD: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    out, i, n, base, marks, nb = adder_at(table, programs, wires, out, marks, n, row_stride, block, 2, MANY, EVEN, TILE)
    inside, total, width = i < n, so_far(out, i, n, ADD), code_width(n, BITS)
    for _ in range(W):
        unit = load_float(base + 4 * (i // block), inside)
        code, _good = load_code(base + 4 * nb, i, inside, width, BITS)
        if SYMMETRIC:
            mark_if(marks, (code < 1) & inside)
        value = (code - (1 << (BITS - 1))).to(tl.float32) * unit
        mark_if(marks + 1, ((unit >= 0) & (unit < float("inf")) & (tl.abs(value) < float("inf"))) == 0)
        total += value * weight
        base += stride
    tl.store(out + i, total, inside)


def encode_fixed(
    rows: Tensor,
    bits: int,
    block: int,
    clip: float,
    shrink: float,
    rng: Stream | None,
    memory: Tensor | None = None,
    rest: Tensor | None = None,
) -> tuple[Tensor, Flag]:
    job = Rows(rows, memory, rest, fixed_bytes(rows.shape[1], bits, block), rng)
    out: tuple[Tensor, Flag] = _write(job, bits, block, clip, shrink, rng is not None)
    return out


def encode_fixed_many(
    message: Tensor, many: Many, bits: int, block: int, clip: float, shrink: Callable[[int], float], step: int | None
) -> Tensor:
    job = Tensors(message, many, step)
    out: Tensor = _write(job, bits, block, clip, job.each(shrink), step is not None)
    return out


def _write(job: Job, bits: int, block: int, clip: float, shrink: float | Tensor, random: bool) -> Any:
    q = (1 << (bits - 1)) - 1
    least, tops = q + (clip < 1), job.reduce(largest, largest_of_many, block)
    return job.encode(
        _encode,
        block,
        tops,
        clip / q,
        MOST / least,
        shrink,
        tells_whole=True,
        BITS=bits,
        LEAST=least,
        RANDOM=random,
        G=TILE // 8,
    )


def sum_fixed(
    received: Sequence[Tensor], out: Tensor, bits: int, block: int, clip: float, weight: float, *, add: bool = False
) -> None:
    width = fixed_bytes(out.shape[1], bits, block)
    marks = add_up(_sum, received, out, width, block, weight, 2, add=add, BITS=bits, SYMMETRIC=clip == 1)
    marks.refuse(0, lambda: PayloadError(bad_code(bits)))
    marks.refuse(1, lambda: PayloadError(BAD_UNIT))


def sum_fixed_many(rows: Tensor, many: Many, bits: int, block: int, clip: float, weight: float) -> Tensor:
    return add_up_many(_sum, rows, many, block, weight, 2, BITS=bits, SYMMETRIC=clip == 1)
