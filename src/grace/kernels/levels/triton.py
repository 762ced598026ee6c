"""Rounding to levels as Triton kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE, Marks, check_rows, even_runs, launch, signed
from grace.errors import PayloadError
from grace.flags.capturing import step_word
from grace.flags.finite import Flag
from grace.kernels.blocks import block_count
from grace.kernels.levels import quantized_bytes
from grace.kernels.levels.codes import BAD_NORM, bad_code, code_bits, code_bytes
from grace.kernels.many import Many
from grace.kernels.many.triton import key_of, tensor_of, tile_of, wire_of
from grace.kernels.statistics.triton import euclidean_norm, euclidean_norm_of_many, largest, largest_of_many
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
    tile_positions,
)
from grace.random.triton import lanes_at, lanes_of_tile

if TYPE_CHECKING:
    from grace.random import Stream

_MOST = 127  # levels: with 16 bits more, float32 is exhausted


@triton.jit(do_not_specialize=["key0", "key1", "step", "shrink"])
def _quantize(
    x, e, rest, wire, norms, bad, n, block, nb, w, width, key0, key1, step, shrink,
    S: tl.constexpr, BITS: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_REST: tl.constexpr, EVEN: tl.constexpr,
    G: tl.constexpr, PER: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    first, i, counts = tile_positions(G, PER)
    _quantize_tile(
        x, e, rest, wire + row * w, norms + row * nb, bad, row * n, first, i, counts & (i < n), n, block, nb, width,
        key0, key1, step, shrink, S, BITS, HAS_MEMORY, HAS_REST, EVEN, G,
    )  # fmt: skip


@triton.jit(do_not_specialize=["step"])
def _quantize_many(
    table, programs, wire, heads, norms, shrinks, bad, block, step,
    S: tl.constexpr, BITS: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_REST: tl.constexpr, EVEN: tl.constexpr,
    G: tl.constexpr, PER: tl.constexpr,
):  # fmt: skip
    task, tile = tile_of(programs)
    x, e, rest = tensor_of(table, task, 0, EVEN), tensor_of(table, task, 1, EVEN), tensor_of(table, task, 2, EVEN)
    place, n = wire_of(table, task)
    key0, key1 = key_of(table, task)
    first, i, counts = positions_of(tile, G, PER)
    width = (n * BITS + 7) // 8 if BITS > 0 else (n + 4) // 5
    _quantize_tile(
        x, e, rest, wire + place, norms + tl.load(heads + task), bad + task, tile - tile, first, i, counts & (i < n), n,
        block, (n + block - 1) // block, width, key0, key1, step, tl.load(shrinks + task),
        S, BITS, HAS_MEMORY, HAS_REST, PER == 8, G,
    )  # fmt: skip


@triton.jit
def _quantize_tile(
    x, e, rest, base, norms, bad, start, first, i, inside, n, block, nb, width, key0, key1, step, shrink,
    S: tl.constexpr, BITS: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_REST: tl.constexpr, EVEN: tl.constexpr,
    G: tl.constexpr,
):  # fmt: skip
    """The numbers i, from ``first`` on, of the row that begins at ``start``, and whose wire begins at ``base``."""
    p = load_sum(x, e, start + i, inside, HAS_MEMORY)
    mark_if(bad, magnitude(p) >= 0x7F800000)
    norm = tl.load(norms + i // block, inside, 0.0)
    zero = norm < 1.1754943508222875e-38
    up = tl.where(norm < 5.421010862427522e-20, 1152921504606846976.0, 1.0)
    whole = tl.zeros_like(norm) + S * 65536.0
    factor = tl.where(zero, 0.0, tl.div_rn(whole, tl.where(zero, 1.0, norm * up)))
    y = round_half_even(p * up * factor)
    if EVEN:
        lane = lanes_of_tile(key0, key1, step, start + first, G)
    else:
        lane = lanes_at(key0, key1, step, start + i)
    size = (tl.abs(y) + (0xFFFF - lane)) >> 16
    level = tl.where(y < 0, -size, size)
    level = tl.where(y == 0, 0, level)
    store_codes(base + 4 * nb, tl.where(inside, level + S, 0), first, n, width, BITS, G)
    sent = tl.where(zero, 0.0, norm) * shrink
    store_float(base + 4 * (i // block), sent, inside & (i % block == 0))
    if HAS_REST:
        worth = tl.div_rn(sent, tl.zeros_like(norm) + S * 1.0)
        tl.store(rest + start + i, p - level.to(tl.float32) * worth, inside)


@triton.jit(do_not_specialize=["weight"])
def _dequantize_sum(
    wires, out, marks, W, stride, row_stride, n, block, nb, width, weight,
    S: tl.constexpr, BITS: tl.constexpr, ADD: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    base = wires + row * row_stride
    _sum_tile(base, out + row * n, marks, W, stride, i, n, block, nb, width, weight, S, BITS, ADD, TILE)


@triton.jit(do_not_specialize=["weight"])
def _dequantize_sum_many(
    table, programs, wires, marks, W, stride, block, weight, S: tl.constexpr, BITS: tl.constexpr, EVEN: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    task, tile = tile_of(programs)
    place, n = wire_of(table, task)
    width = (n * BITS + 7) // 8 if BITS > 0 else (n + 4) // 5
    _sum_tile(
        wires + place, tensor_of(table, task, 0, EVEN), marks + 2 * task, W, stride, tile * TILE + tl.arange(0, TILE), n,
        block, (n + block - 1) // block, width, weight, S, BITS, False, TILE,
    )  # fmt: skip


@triton.jit
def _sum_tile(
    base, out, marks, W, stride, i, n, block, nb, width, weight,
    S: tl.constexpr, BITS: tl.constexpr, ADD: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The numbers i of a row, whose wires begin at ``base`` and every ``stride`` bytes behind it."""
    inside = i < n
    total = tl.zeros((TILE,), tl.float32)
    if ADD:
        total = tl.load(out + i, inside, 0.0)
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
) -> tuple[Tensor, Flag] | Any:
    if s > _MOST:
        return NotImplemented
    check_rows(rows=rows, memory=memory, rest=rest)
    b, n = rows.shape
    norms = (largest if norm == "linf" else euclidean_norm)(rows, memory, block)
    wire = torch.empty(b, quantized_bytes(n, s, block), dtype=torch.uint8, device=rows.device)
    bad, per = Marks(rows), 5 if s == 1 else 8
    key0, key1 = rng.key()
    launch(
        _quantize, (block_count(n, TILE // 8 * per), b), rows, memory, rest, wire, norms, bad.words, n, block, norms.shape[1],
        wire.shape[1], code_bytes(n, s), signed(key0), signed(key1), step_word(rng.step, rows.device), shrink,
        S=s, BITS=_bits(s), HAS_MEMORY=memory is not None, HAS_REST=rest is not None,
        EVEN=per == 8 and (b == 1 or n % 4 == 0), G=TILE // 8, PER=per,
    )  # fmt: skip
    return wire, bad.unset()


def dequantize_sum(
    received: Sequence[Tensor], out: Tensor, s: int, block: int, weight: float, *, add: bool = False
) -> Any:
    if s > _MOST:
        return NotImplemented
    check_rows(out=out)
    (b, n), marks = out.shape, Marks(out, 2)
    if not add and not received:
        out.zero_()
    for run in even_runs(received, b, quantized_bytes(n, s, block)):
        launch(
            _dequantize_sum, (block_count(n, TILE), b), run.first, out, marks.words, run.count, run.stride, run.row, n, block,
            block_count(n, block), code_bytes(n, s), weight, S=s, BITS=_bits(s), ADD=add, TILE=TILE,
        )  # fmt: skip
        add = True
    marks.refuse(0, lambda: PayloadError(BAD_NORM))
    marks.refuse(1, lambda: PayloadError(bad_code(s)))
    return None


def quantize_many(
    message: Tensor,
    many: Many,
    s: int,
    block: int,
    norm: Literal["linf", "l2"],
    shrink: Callable[[int], float],
    step: int,
) -> Tensor | Any:
    if s > _MOST:
        return NotImplemented
    shrinks = many.numbers(("shrinks", shrink), lambda: [shrink(n) for n in many.sizes], torch.float32)
    norms = (largest_of_many if norm == "linf" else euclidean_norm_of_many)(many, block)
    bad, per = Marks(message, len(many)), 5 if s == 1 else 8
    block, tiles = many.clip(block), many.tiles(TILE // 8 * per)
    launch(
        _quantize_many, (len(tiles),), many.table, tiles, message, many.heads(block), norms, shrinks, bad.words, block,
        step_word(step, many.device), S=s, BITS=_bits(s), HAS_MEMORY=many.memories is not None,
        HAS_REST=many.rests is not None, EVEN=many.even, G=TILE // 8, PER=per,
    )  # fmt: skip
    return bad.words == 0


def dequantize_sum_many(rows: Tensor, many: Many, s: int, block: int, weight: float) -> Tensor | Any:
    if s > _MOST:
        return NotImplemented
    marks, tiles = Marks(rows, 2 * len(many)), many.tiles(TILE)
    launch(
        _dequantize_sum_many, (len(tiles),), many.table, tiles, rows, marks.words, rows.shape[0], rows.stride(0),
        many.clip(block), weight, S=s, BITS=_bits(s), EVEN=many.even, TILE=TILE,
    )  # fmt: skip
    return (marks.words.view(-1, 2) == 0).all(dim=1)


def _bits(s: int) -> int:
    return code_bits(s) if s > 1 else 0  # base 3
