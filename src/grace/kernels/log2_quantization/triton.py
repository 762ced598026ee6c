"""Stochastic rounding to powers of two as Triton kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.errors import PayloadError
from grace.kernels.blocks import fits_tile
from grace.kernels.log2_quantization import BAD_CODE, BAD_HEAD, powers_bytes
from grace.kernels.statistics.triton import largest, largest_of_many
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.jobs import Job, Rows, Tensors, add_up, add_up_many, span_of
from grace.kernels.tensor_list.triton import adder_at, code_width, encoder_at, so_far
from grace.kernels.triton import magnitude, mark_if, negated, store_codes, store_tile
from grace.kernels.triton.tiles import (
    lanes_of,
    left_of,
    load_codes,
    of_blocks,
    spread,
    store_heads,
    sum_of_tile,
    tops_of_blocks,
)
from grace.random.triton import lanes_at, lanes_of_tile

if TYPE_CHECKING:
    from grace.random import Stream

_OCTAVES = {4: 7, 8: 126, 9: 254}


@triton.jit
def _value(code, below, BITS: tl.constexpr):
    """Codes, and the raw exponent that code 0 would have -> (what they stand for, the level, its raw exponent)."""
    level = code & ((1 << (BITS - 1)) - 1)
    raw = tl.where(level > 0, level + below, 0)
    size = (raw << 23).to(tl.float32, bitcast=True)
    return tl.where((code >> (BITS - 1)) > 0, negated(size), size), level, tl.where(level > 0, raw, 1)


@triton.jit(do_not_specialize=["n", "key0", "key1", "step"])
def _encode(
    table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, step, block: tl.constexpr, tops,
    BITS: tl.constexpr, OCTAVES: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, WHOLE: tl.constexpr,
    HAS_MEMORY: tl.constexpr, HAS_REST: tl.constexpr, FINDS: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    _task, tile, x, e, rest, start, n, base, bad, head, nb, key0, key1 = encoder_at(
        table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, block, MANY, EVEN
    )
    SPAN: tl.constexpr = G * 8
    lane = lanes_of(G, 8)
    first, begin, inside, full, p = sum_of_tile(x, e, bad, tile, start, n, lane, HAS_MEMORY, SPAN)
    below, codes = tl.zeros(lane.shape, tl.int32), base
    if BITS < 9:
        codes = base + nb
        if FINDS:
            word = tops_of_blocks(magnitude(p), block, SPAN)
        else:
            word = of_blocks(tops + head, first, lane, inside, n, block, SPAN)
        raw = (word >> 23) & 0xFF
        top = raw + tl.where((raw > 0) & ((word & 0x7FFFFF) > 0), 1, 0)  # the largest number, rounded up
        top = tl.minimum(tl.maximum(top, 1), 254) - 127
        store_heads(base, top, first, lane, inside, n, block, SPAN)
        below = spread(top + (127 - OCTAVES), first, lane, block, SPAN)
    size = magnitude(p)
    unit = tl.where(below >= 0, (253 - below) << 23, 0).to(tl.float32, bitcast=True)
    within = size >= (tl.maximum(below + 1, 1) << 23)
    small = tl.where(within, 0.0, tl.abs(p) * unit * 8388608.0).to(tl.int32)
    place = tl.where(within, size - below * 8388608, small)  # from `below` on, an octave is 2**23
    if WHOLE:
        drawn = lanes_of_tile(key0, key1, step, begin, G)
    else:
        drawn = lanes_at(key0, key1, step, begin + lane)
    level = tl.minimum((place - (drawn << 7) + (8388608 - 65)) >> 23, OCTAVES)
    code = level | (tl.where((p < 0) & (level > 0), 1, 0) << (BITS - 1))
    store_codes(codes, tl.where(inside, code, 0), first, n, code_width(n, BITS), BITS, G)
    if HAS_REST:
        decoded, _level, _raw = _value(code, below, BITS)
        store_tile(rest + begin + lane, p - decoded, inside, full)


@triton.jit(do_not_specialize=["weight", "n"])
def _sum(
    table, programs, wires, out, marks, n, W, stride, row_stride, block: tl.constexpr, weight,
    BITS: tl.constexpr, OCTAVES: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, ADD: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    out, first, n, base, marks, nb = adder_at(
        table, programs, wires, out, marks, n, row_stride, block, 2, MANY, EVEN, TILE
    )
    out, lane, left = out + first, tl.arange(0, TILE), left_of(n, first, TILE)
    inside, full = lane < left, left == TILE
    total, width = so_far(out, lane, left, ADD, full), code_width(n, BITS)
    most, fine = tl.zeros((TILE,), tl.int32), lane >= 0
    for _ in range(W):
        below, codes = tl.zeros((TILE,), tl.int32), base
        if BITS < 9:
            byte = of_blocks(base, first, lane, inside, n, block, TILE).to(tl.int32)
            below = spread(tl.where(byte >= 128, byte - 256, byte) + (127 - OCTAVES), first, lane, block, TILE)
            codes = base + nb
        code, _good = load_codes(codes, first, lane, inside, width, BITS)
        value, level, raw = _value(code, below, BITS)
        most = tl.maximum(most, level)
        fine = fine & (raw >= 1) & (raw <= 254)
        total += value * weight
        base += stride
    mark_if(marks + 1, (most > OCTAVES) & inside)
    mark_if(marks, (fine == 0) & inside)
    store_tile(out + lane, total, inside, full)


def encode_powers(
    rows: Tensor, bits: int, block: int, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
) -> Any:
    return _write(Rows(rows, memory, rest, powers_bytes(rows.shape[1], bits, block), rng), bits, block)


def encode_powers_many(message: Tensor, many: TensorList, bits: int, block: int, step: int) -> Any:
    return _write(Tensors(message, many, step), bits, block)


def _write(job: Job, bits: int, block: int) -> Any:
    finds = bits < 9 and fits_tile(block)
    tops = None if finds or bits == 9 else job.reduce(largest, largest_of_many, block).view(torch.int32)
    tile = span_of(block, whole=finds)
    how = {"BITS": bits, "OCTAVES": _OCTAVES[bits], "FINDS": finds, "G": tile // 8}
    return job.encode(_encode, block, tops, tells_whole=True, tile=tile, **how)


def sum_powers(
    received: Sequence[Tensor], out: Tensor, bits: int, block: int, weight: float, *, add: bool = False
) -> Any:
    width = powers_bytes(out.shape[1], bits, block)
    marks = add_up(_sum, received, out, width, block, weight, 2, add=add, BITS=bits, OCTAVES=_OCTAVES[bits])
    marks.refuse(1, lambda: PayloadError(BAD_CODE))
    marks.refuse(0, lambda: PayloadError(BAD_HEAD))
    return None


def sum_powers_many(rows: Tensor, many: TensorList, bits: int, block: int, weight: float) -> Any:
    return add_up_many(_sum, rows, many, block, weight, 2, BITS=bits, OCTAVES=_OCTAVES[bits])
