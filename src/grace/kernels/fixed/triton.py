"""Fixed-point numbers as Triton kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE, Marks, check_rows, even_runs, launch, signed
from grace.errors import PayloadError
from grace.flags.capturing import step_word
from grace.flags.finite import Flag
from grace.kernels.blocks import block_count
from grace.kernels.fixed import BAD_UNIT, bad_code, fixed_bytes
from grace.kernels.levels import MOST
from grace.kernels.packing import packed_bytes
from grace.kernels.statistics.triton import largest
from grace.kernels.triton import (
    load_code,
    load_float,
    load_sum,
    magnitude,
    mark_if,
    round_half_even,
    store_codes,
    store_float,
    tile_positions,
)
from grace.random.triton import lanes_at, lanes_of_tile

if TYPE_CHECKING:
    from grace.random import Stream


@triton.jit(do_not_specialize=["key0", "key1", "step", "share", "most", "shrink"])
def _encode(
    x, e, rest, wire, tops, bad, n, block, nb, w, width, key0, key1, step, share, most, shrink,
    BITS: tl.constexpr, LEAST: tl.constexpr, RANDOM: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_REST: tl.constexpr,
    EVEN: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    first, i, counts = tile_positions(G, 8)
    inside = counts & (i < n)
    p = load_sum(x, e, row * n + i, inside, HAS_MEMORY)
    mark_if(bad, magnitude(p) >= 0x7F800000)
    k = i // block
    unit = tl.load(tops + row * nb + k, inside, 0.0) * share
    unit = tl.where(unit > most, most, unit)
    unit = tl.where(unit < 1.1754943508222875e-38, 0.0, unit)
    live = unit > 0
    y = tl.where(live, tl.div_rn(p, tl.where(live, unit, 1.0)), 0.0)
    top = (1 << (BITS - 1)) - 1
    y = tl.where(y > top, top * 1.0, tl.where(y < -LEAST, -LEAST * 1.0, y))
    size = tl.abs(y)
    level = round_half_even(size)
    if RANDOM:
        if EVEN:
            lane = lanes_of_tile(key0, key1, step, row * n + first, G)
        else:
            lane = lanes_at(key0, key1, step, row * n + i)
        near = level.to(tl.float32)
        low = near - tl.where(near > size, 1.0, 0.0)
        u = (lane.to(tl.float32) + 0.5) * 0.0000152587890625
        drawn = low + tl.where(u < size - low, 1.0, 0.0)
        level = tl.where(tl.abs(size - near) <= tl.maximum(size, 1.0) * 1e-6, near, drawn).to(tl.int32)
    code = tl.where(y < 0, -level, level)
    base = wire + row * w
    store_codes(base + 4 * nb, tl.where(inside, code + top + 1, 0), first, n, width, BITS, G)
    sent = tl.div_rn(unit, tl.zeros_like(unit) + shrink)
    store_float(base + 4 * k, sent, inside & (i % block == 0))
    if HAS_REST:
        tl.store(rest + row * n + i, p - code.to(tl.float32) * sent, inside)


@triton.jit(do_not_specialize=["weight"])
def _sum(
    wires, out, marks, W, stride, row_stride, n, block, nb, width, weight,
    BITS: tl.constexpr, SYMMETRIC: tl.constexpr, ADD: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = i < n
    total = tl.zeros((TILE,), tl.float32)
    if ADD:
        total = tl.load(out + row * n + i, inside, 0.0)
    base = wires + row * row_stride
    for _ in range(W):
        unit = load_float(base + 4 * (i // block), inside)
        code, _good = load_code(base + 4 * nb, i, inside, width, BITS)
        if SYMMETRIC:
            mark_if(marks, (code < 1) & inside)
        value = (code - (1 << (BITS - 1))).to(tl.float32) * unit
        mark_if(marks + 1, ((unit >= 0) & (unit < float("inf")) & (tl.abs(value) < float("inf"))) == 0)
        total += value * weight
        base += stride
    tl.store(out + row * n + i, total, inside)


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
    check_rows(rows=rows, memory=memory, rest=rest)
    (b, n), bad = rows.shape, Marks(rows)
    q = (1 << (bits - 1)) - 1
    least, tops = q + (clip < 1), largest(rows, memory, block)
    wire = torch.empty(b, fixed_bytes(n, bits, block), dtype=torch.uint8, device=rows.device)
    key0, key1, step = (0, 0, 0) if rng is None else (*map(signed, rng.key()), step_word(rng.step, rows.device))
    launch(
        _encode, (block_count(n, TILE), b), rows, memory, rest, wire, tops, bad.words, n, block, tops.shape[1], wire.shape[1],
        packed_bytes(n, bits), key0, key1, step, clip / q, MOST / least, shrink,
        BITS=bits, LEAST=least, RANDOM=rng is not None, HAS_MEMORY=memory is not None, HAS_REST=rest is not None,
        EVEN=b == 1 or n % 4 == 0, G=TILE // 8,
    )  # fmt: skip
    return wire, bad.unset()


def sum_fixed(
    received: Sequence[Tensor], out: Tensor, bits: int, block: int, clip: float, weight: float, *, add: bool = False
) -> None:
    check_rows(out=out)
    (b, n), marks = out.shape, Marks(out, 2)
    if not add and not received:
        out.zero_()
    for run in even_runs(received, b, fixed_bytes(n, bits, block)):
        launch(
            _sum, (block_count(n, TILE), b), run.first, out, marks.words, run.count, run.stride, run.row, n, block,
            block_count(n, block), packed_bytes(n, bits), weight, BITS=bits, SYMMETRIC=clip == 1, ADD=add, TILE=TILE,
        )  # fmt: skip
        add = True
    marks.refuse(0, lambda: PayloadError(bad_code(bits)))
    marks.refuse(1, lambda: PayloadError(BAD_UNIT))
