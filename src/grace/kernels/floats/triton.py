"""Floats of 8 bits as Triton kernels. They are rounded by integers: casts to them differ between devices."""

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
from grace.kernels.floats import BAD_CODE, BAD_SCALE, FloatFormat, float_bytes
from grace.kernels.levels import MOST
from grace.kernels.many import Many
from grace.kernels.many.triton import key_of, tensor_of, tile_of, wire_of
from grace.kernels.statistics.triton import largest, largest_of_many
from grace.kernels.triton import (
    load_float,
    load_sum,
    magnitude,
    mark_if,
    negated,
    power_of_two_as_float,
    round_half_even,
    store_float,
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


@triton.jit(do_not_specialize=["key0", "key1", "step"])
def _encode(
    x, e, rest, wire, tops, bad, n, block, nb, w, key0, key1, step,
    FRACTION: tl.constexpr, LEAST: tl.constexpr, LARGEST: tl.constexpr, MOST: tl.constexpr, RANDOM: tl.constexpr,
    EVEN: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_REST: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0).to(tl.int64) * TILE
    _encode_tile(
        x, e, rest, wire + row * w, tops + row * nb, bad, row * n, first, n, block, nb, key0, key1, step,
        FRACTION, LEAST, LARGEST, MOST, RANDOM, EVEN, HAS_MEMORY, HAS_REST, TILE,
    )  # fmt: skip


@triton.jit(do_not_specialize=["step"])
def _encode_many(
    table, programs, wire, heads, tops, bad, block, step,
    FRACTION: tl.constexpr, LEAST: tl.constexpr, LARGEST: tl.constexpr, MOST: tl.constexpr, RANDOM: tl.constexpr,
    EVEN: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_REST: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    task, tile = tile_of(programs)
    x, e, rest = tensor_of(table, task, 0, EVEN), tensor_of(table, task, 1, EVEN), tensor_of(table, task, 2, EVEN)
    place, n = wire_of(table, task)
    key0, key1 = key_of(table, task)
    _encode_tile(
        x, e, rest, wire + place, tops + tl.load(heads + task), bad + task, tile - tile, tile * TILE, n, block,
        (n + block - 1) // block, key0, key1, step,
        FRACTION, LEAST, LARGEST, MOST, RANDOM, True, HAS_MEMORY, HAS_REST, TILE,
    )  # fmt: skip


@triton.jit
def _encode_tile(
    x, e, rest, base, tops, bad, start, first, n, block, nb, key0, key1, step,
    FRACTION: tl.constexpr, LEAST: tl.constexpr, LARGEST: tl.constexpr, MOST: tl.constexpr, RANDOM: tl.constexpr,
    EVEN: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_REST: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The numbers from ``first`` on of the row that begins at ``start``, and whose wire begins at ``base``."""
    i = first + tl.arange(0, TILE)
    inside = i < n
    p = load_sum(x, e, start + i, inside, HAS_MEMORY)
    mark_if(bad, magnitude(p) >= 0x7F800000)
    k = i // block
    top = tl.minimum(tl.load(tops + k, inside, 0.0), MOST)
    scale = tl.div_rn(top, tl.zeros_like(top) + LARGEST)
    scale = tl.where(scale < 1.1754943508222875e-38, 0.0, scale)
    live = scale > 0
    y = tl.where(live, tl.div_rn(p, tl.where(live, scale, 1.0)), 0.0)
    if RANDOM:
        if EVEN:
            lane = tl.reshape(lanes_of_tile(key0, key1, step, start + first, TILE // 8), (TILE,))
        else:
            lane = lanes_at(key0, key1, step, start + i)
        y = _round_at_random(y, lane, FRACTION, LEAST)
    y = tl.where(tl.abs(y) > LARGEST, tl.where(y > 0, LARGEST, -LARGEST), y)
    code = _code_of(y, FRACTION, LEAST)
    store_float(base + 4 * k, scale, inside & (i % block == 0))
    tl.store(base + 4 * nb + i, code.to(tl.uint8), inside)
    if HAS_REST:
        said, _finite = _value_of(code, FRACTION, LEAST)
        tl.store(rest + start + i, p - said * scale, inside)


@triton.jit(do_not_specialize=["weight"])
def _sum(
    wires, out, marks, W, stride, row_stride, n, block, nb, weight,
    FRACTION: tl.constexpr, LEAST: tl.constexpr, ADD: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    _sum_tile(
        wires + row * row_stride, out + row * n, marks, W, stride, i, n, block, nb, weight, FRACTION, LEAST, ADD, TILE
    )  # fmt: skip


@triton.jit(do_not_specialize=["weight"])
def _sum_many(
    table, programs, wires, marks, W, stride, block, weight,
    FRACTION: tl.constexpr, LEAST: tl.constexpr, EVEN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    task, tile = tile_of(programs)
    place, n = wire_of(table, task)
    _sum_tile(
        wires + place, tensor_of(table, task, 0, EVEN), marks + 2 * task, W, stride, tile * TILE + tl.arange(0, TILE), n,
        block, (n + block - 1) // block, weight, FRACTION, LEAST, False, TILE,
    )  # fmt: skip


@triton.jit
def _sum_tile(
    base, out, marks, W, stride, i, n, block, nb, weight,
    FRACTION: tl.constexpr, LEAST: tl.constexpr, ADD: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The numbers i of a row, whose wires begin at ``base`` and every ``stride`` bytes behind it."""
    inside = i < n
    total = tl.zeros((TILE,), tl.float32)
    if ADD:
        total = tl.load(out + i, inside, 0.0)
    for _ in range(W):
        scale = load_float(base + 4 * (i // block), inside)
        value, finite = _value_of(tl.load(base + 4 * nb + i, inside, 0).to(tl.int32), FRACTION, LEAST)
        mark_if(marks, finite == 0)
        value = value * scale
        mark_if(marks + 1, ((scale >= 0) & (scale < float("inf")) & (tl.abs(value) < float("inf"))) == 0)
        total += value * weight
        base += stride
    tl.store(out + i, total, inside)


def encode_floats(
    rows: Tensor,
    kind: FloatFormat,
    block: int,
    rng: Stream | None,
    memory: Tensor | None = None,
    rest: Tensor | None = None,
) -> tuple[Tensor, Flag]:
    check_rows(rows=rows, memory=memory, rest=rest)
    (b, n), bad = rows.shape, Marks(rows)
    tops = largest(rows, memory, block)
    wire = torch.empty(b, float_bytes(n, block), dtype=torch.uint8, device=rows.device)
    key0, key1, step = (0, 0, 0) if rng is None else (*map(signed, rng.key()), step_word(rng.step, rows.device))
    launch(
        _encode, (block_count(n, TILE), b), rows, memory, rest, wire, tops, bad.words, n, block, tops.shape[1],
        wire.shape[1], key0, key1, step,
        FRACTION=kind.m, LEAST=kind.least, LARGEST=kind.F, MOST=MOST, RANDOM=rng is not None, EVEN=b == 1 or n % 4 == 0,
        HAS_MEMORY=memory is not None, HAS_REST=rest is not None, TILE=TILE,
    )  # fmt: skip
    return wire, bad.unset()


def sum_floats(
    received: Sequence[Tensor], out: Tensor, kind: FloatFormat, block: int, weight: float, *, add: bool = False
) -> None:
    check_rows(out=out)
    (b, n), marks = out.shape, Marks(out, 2)
    if not add and not received:
        out.zero_()
    for run in even_runs(received, b, float_bytes(n, block)):
        launch(_sum, (block_count(n, TILE), b), run.first, out, marks.words, run.count, run.stride, run.row, n, block,
               block_count(n, block), weight, FRACTION=kind.m, LEAST=kind.least, ADD=add, TILE=TILE)  # fmt: skip
        add = True
    marks.refuse(0, lambda: PayloadError(BAD_CODE))
    marks.refuse(1, lambda: PayloadError(BAD_SCALE))


def encode_floats_many(message: Tensor, many: Many, kind: FloatFormat, block: int, step: int | None) -> Tensor:
    bad, tops = Marks(message, len(many)), largest_of_many(many, block)
    block, tiles = many.clip(block), many.tiles(TILE)
    launch(
        _encode_many, (len(tiles),), many.table, tiles, message, many.heads(block), tops, bad.words, block,
        step_word(step or 0, many.device),
        FRACTION=kind.m, LEAST=kind.least, LARGEST=kind.F, MOST=MOST, RANDOM=step is not None, EVEN=many.even,
        HAS_MEMORY=many.memories is not None, HAS_REST=many.rests is not None, TILE=TILE,
    )  # fmt: skip
    return bad.words == 0


def sum_floats_many(rows: Tensor, many: Many, kind: FloatFormat, block: int, weight: float) -> Tensor:
    marks, tiles = Marks(rows, 2 * len(many)), many.tiles(TILE)
    launch(
        _sum_many, (len(tiles),), many.table, tiles, rows, marks.words, rows.shape[0], rows.stride(0), many.clip(block),
        weight, FRACTION=kind.m, LEAST=kind.least, EVEN=many.even, TILE=TILE,
    )  # fmt: skip
    return (marks.words.view(-1, 2) == 0).all(dim=1)
