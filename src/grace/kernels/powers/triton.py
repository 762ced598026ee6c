"""Stochastic rounding to powers of two as Triton kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE, Marks, check_rows, even_runs, launch, signed
from grace.errors import PayloadError
from grace.flags.capturing import step_word
from grace.flags.finite import Flag
from grace.kernels.blocks import block_count
from grace.kernels.packing import packed_bytes
from grace.kernels.powers import BAD_CODE, BAD_HEAD, powers_bytes
from grace.kernels.statistics.triton import largest
from grace.kernels.triton import (
    load_code,
    load_sum,
    magnitude,
    mark_if,
    negated,
    store_codes,
    tile_positions,
)
from grace.random.triton import lanes_at, lanes_of_tile

if TYPE_CHECKING:
    from grace.random import Stream

_OCTAVES = {4: 7, 8: 126}


@triton.jit
def _value(code, below, BITS: tl.constexpr):
    """Codes, and the raw exponent that code 0 would have -> (what they stand for, the level, its raw exponent)."""
    level = code & ((1 << (BITS - 1)) - 1)
    raw = tl.where(level > 0, level + below, 0)
    size = (raw << 23).to(tl.float32, bitcast=True)
    return tl.where((code >> (BITS - 1)) > 0, negated(size), size), level, tl.where(level > 0, raw, 1)


@triton.jit(do_not_specialize=["key0", "key1", "step"])
def _encode(
    x, e, rest, wire, tops, bad, n, block, nb, w, width, key0, key1, step,
    BITS: tl.constexpr, OCTAVES: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_REST: tl.constexpr, EVEN: tl.constexpr,
    G: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    first, i, counts = tile_positions(G, 8)
    inside = counts & (i < n)
    p = load_sum(x, e, row * n + i, inside, HAS_MEMORY)
    mark_if(bad, magnitude(p) >= 0x7F800000)
    k = i // block
    word = tl.load(tops + row * nb + k, inside, 0)
    raw = (word >> 23) & 0xFF
    top = raw + tl.where((raw > 0) & ((word & 0x7FFFFF) > 0), 1, 0)  # the largest number, rounded up
    top = tl.minimum(tl.maximum(top, 1), 254) - 127
    below = top + (127 - OCTAVES)
    size = magnitude(p)
    unit = tl.where(below >= 0, (253 - below) << 23, 0).to(tl.float32, bitcast=True)
    within = size >= (tl.maximum(below + 1, 1) << 23)
    small = tl.where(within, 0.0, tl.abs(p) * unit * 8388608.0).to(tl.int32)
    place = tl.where(within, size - below * 8388608, small)  # from `below` on, an octave is 2**23
    if EVEN:
        lane = lanes_of_tile(key0, key1, step, row * n + first, G)
    else:
        lane = lanes_at(key0, key1, step, row * n + i)
    level = tl.minimum((place - (lane << 7) + (8388608 - 65)) >> 23, OCTAVES)
    code = level | (tl.where((p < 0) & (level > 0), 1, 0) << (BITS - 1))
    base = wire + row * w
    tl.store(base + k, (top & 0xFF).to(tl.uint8), inside & (i % block == 0))
    store_codes(base + nb, tl.where(inside, code, 0), first, n, width, BITS, G)
    if HAS_REST:
        said, _level, _raw = _value(code, below, BITS)
        tl.store(rest + row * n + i, p - said, inside)


@triton.jit(do_not_specialize=["weight"])
def _sum(
    wires, out, marks, W, stride, row_stride, n, block, nb, width, weight,
    BITS: tl.constexpr, OCTAVES: tl.constexpr, ADD: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = i < n
    total = tl.zeros((TILE,), tl.float32)
    if ADD:
        total = tl.load(out + row * n + i, inside, 0.0)
    base = wires + row * row_stride
    for _ in range(W):
        byte = tl.load(base + i // block, inside, 0).to(tl.int32)
        top = tl.where(byte >= 128, byte - 256, byte)
        code, _good = load_code(base + nb, i, inside, width, BITS)
        value, level, raw = _value(code, top + (127 - OCTAVES), BITS)
        mark_if(marks + 1, (level > OCTAVES) & inside)
        mark_if(marks, ((raw < 1) | (raw > 254)) & inside)
        total += value * weight
        base += stride
    tl.store(out + row * n + i, total, inside)


def encode_powers(
    rows: Tensor, bits: int, block: int, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, Flag] | Any:
    if bits not in _OCTAVES:
        return NotImplemented
    check_rows(rows=rows, memory=memory, rest=rest)
    b, n = rows.shape
    tops = largest(rows, memory, block).view(torch.int32)
    wire = torch.empty(b, powers_bytes(n, bits, block), dtype=torch.uint8, device=rows.device)
    bad, (key0, key1) = Marks(rows), rng.key()
    launch(
        _encode, (block_count(n, TILE), b), rows, memory, rest, wire, tops, bad.words, n, block, tops.shape[1], wire.shape[1],
        packed_bytes(n, bits), signed(key0), signed(key1), step_word(rng.step, rows.device), BITS=bits, OCTAVES=_OCTAVES[bits],
        HAS_MEMORY=memory is not None, HAS_REST=rest is not None, EVEN=b == 1 or n % 4 == 0, G=TILE // 8,
    )  # fmt: skip
    return wire, bad.unset()


def sum_powers(
    received: Sequence[Tensor], out: Tensor, bits: int, block: int, weight: float, *, add: bool = False
) -> Any:
    if bits not in _OCTAVES:
        return NotImplemented
    check_rows(out=out)
    (b, n), marks = out.shape, Marks(out, 2)
    if not add and not received:
        out.zero_()
    for run in even_runs(received, b, powers_bytes(n, bits, block)):
        launch(
            _sum, (block_count(n, TILE), b), run.first, out, marks.words, run.count, run.stride, run.row, n, block,
            block_count(n, block), packed_bytes(n, bits), weight, BITS=bits, OCTAVES=_OCTAVES[bits], ADD=add, TILE=TILE,
        )  # fmt: skip
        add = True
    marks.refuse(1, lambda: PayloadError(BAD_CODE))
    marks.refuse(0, lambda: PayloadError(BAD_HEAD))
    return None
