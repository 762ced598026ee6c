"""Rounding to tables as Triton kernels, for the tensors of a bucket.

What a code or a sum of entries says, in units of A, is looked up in a table of the reference's making: the same bits, and no
arithmetic in float64.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.host import host_int64, to_device
from grace.compute.launching import TILE, Marks, launch
from grace.flags.capturing import step_word
from grace.kernels.lookup_table import Chunks, code_bits
from grace.kernels.lookup_table.reference import share_of
from grace.kernels.packing import packed_bytes
from grace.kernels.rotation import rotate_back_many
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.triton import code_width, key_of, numbers_of, tile_of, wire_of
from grace.kernels.triton import load_code, mark_if, positions_of, store_codes, store_tile
from grace.kernels.triton.bit_streams import load_bits
from grace.random.triton import lanes_at


@triton.jit(do_not_specialize=["step", "scale"])
def _encode(
    table, programs, heads, x, wire, bounds, entries, shares, W, stride, step, scale,
    BITS: tl.constexpr, LOG: tl.constexpr, SAY: tl.constexpr, EVEN: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    """A program: codes of a tile of one owner's chunk. scale: g/2. SAY: x, the rotated numbers, become what the codes say."""
    task, tile = tile_of(programs)
    x, _start = numbers_of(table, task, x, EVEN)
    place, n = wire_of(table, task)
    key0, key1 = key_of(table, task)
    c = (n + W - 1) // W
    per = (c + 8 * G - 1) // (8 * G)
    owner = tile // per
    first, inner, _counts = positions_of(tile % per, G, 8)
    i = owner * c + inner
    inside = (inner < c) & (i < n)
    bound = tl.load(bounds + tl.load(heads + task) + (i >> LOG), inside, 0.0)
    live = bound >= 1.1754943508222875e-38
    unit = tl.where(live, tl.div_rn(tl.load(x + i, inside, 0.0), tl.where(live, bound, 1.0)), 0.0)
    v = (tl.where(unit > 1, 1.0, tl.where(unit < -1, -1.0, unit)) + 1.0) * scale
    near = (v + 8388608.0) - 8388608.0
    v = tl.where(tl.abs(v - near) <= tl.maximum(v, 1.0) * 1e-6, near, v)
    low = tl.zeros((G, 8), tl.int32)  # the last entry that is at most v
    for t in tl.static_range(0, BITS):
        half = (1 << BITS) >> (t + 1)
        low += tl.where(tl.load(entries + low + half) <= v, half, 0)
    low = tl.minimum(low, (1 << BITS) - 2)
    below = tl.load(entries + low)
    u = (lanes_at(key0, key1, step, i).to(tl.float32) + 0.5) * 0.0000152587890625
    code = low + tl.where(u * (tl.load(entries + low + 1) - below) < v - below, 1, 0)
    store_codes(wire + owner * stride + place, tl.where(inside, code, 0), first, c, code_width(c, BITS), BITS, G)
    if SAY:
        tl.store(x + i, tl.load(shares + code) * bound, inside)


@triton.jit
def _sum(
    table,
    programs,
    begins,
    wires,
    wire,
    values,
    W,
    stride,
    BITS: tl.constexpr,
    SUM_BITS: tl.constexpr,
    TILE: tl.constexpr,
):
    """A program: bytes of the packed sums of a chunk."""
    task, tile = tile_of(programs)
    place, n = wire_of(table, task)
    c = (n + W - 1) // W
    o = tile * TILE + tl.arange(0, TILE)
    size = (c * SUM_BITS + 7) // 8
    byte = o - o
    for t in tl.static_range(0, (SUM_BITS + 6) // SUM_BITS + 1):
        j = o * 8 // SUM_BITS + t
        inside = (j < c) & (o < size)
        total = o - o
        base = wires + place
        for _ in range(W):
            code, _good = load_code(base, j, inside, code_width(c, BITS), BITS)
            total += tl.load(values + code, inside, 0)
            base += stride
        shift = j * SUM_BITS - 8 * o  # of this field into the byte; negative where it began in one before
        byte |= tl.where(shift < 0, total >> tl.maximum(-shift, 0), total << tl.maximum(shift, 0))
    tl.store(wire + tl.load(begins + task) + o, (byte & 0xFF).to(tl.uint8), o < size)


@triton.jit
def _decode(
    table, programs, heads, begins, wires, x, marks, bounds, shares, W, stride, most,
    SUM_BITS: tl.constexpr, LOG: tl.constexpr, EVEN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """x: what sums say of rotated numbers. A mark where a sum is above ``most``."""
    task, tile = tile_of(programs)
    x, _start = numbers_of(table, task, x, EVEN)
    _place, n = wire_of(table, task)
    c = (n + W - 1) // W
    first, lane = tile * TILE, tl.arange(0, TILE)
    i = first + lane
    inside, full = i < n, n - first >= TILE
    before = first % c
    if c >= TILE:  # a tile is of two chunks at most
        further = (lane >= tl.minimum(c - before, TILE).to(tl.int32)).to(tl.int32)
    else:
        further = (before.to(tl.int32) + lane) // c.to(tl.int32)
    at = wires + (first // c + further) * stride + tl.load(begins + task)
    total = load_bits(at, before + lane - further * c, inside, (c * SUM_BITS + 7) // 8, SUM_BITS)
    mark_if(marks + task, (total > most) & inside)
    bound = tl.load(bounds + tl.load(heads + task) + (i >> LOG), inside, 0.0)
    store_tile(x + i, tl.load(shares + tl.minimum(total, most)) * bound, inside, full)


def encode_entries_many(
    message: Tensor, many: TensorList, chunks: Chunks, bounds: Tensor, block: int, step: int
) -> None:
    y, W, bits, g = many.work, chunks.world, code_bits(chunks.table), chunks.table[-1]
    assert y is not None
    tiles = y.pairs(("chunks", W), lambda: [W * -(-c // TILE) for c in chunks.counts])
    entries, share = _numbers(chunks.table, torch.float32, y.device), _shares(chunks.table, g, y.device)
    clip, keep = y.clip(block), many.rests is not None
    launch(_encode, (len(tiles),), y.table, tiles, y.heads(clip), y.like, message, bounds, entries, share, W,
           message.stride(0), step_word(step, y.device), g / 2, BITS=bits, LOG=block.bit_length() - 1, SAY=keep, EVEN=y.even,
           G=TILE // 8)  # fmt: skip
    if keep:
        rotate_back_many(message, y, many, block, 0, step, subtract=True)


def sum_entries_many(received: Tensor, message: Tensor, many: TensorList, chunks: Chunks) -> None:
    sizes = [packed_bytes(c, chunks.bits) for c in chunks.counts]
    tiles = many.pairs(("sums", chunks.world), lambda: [-(-size // TILE) for size in sizes])
    launch(_sum, (len(tiles),), many.table, tiles, _sums_begin(many, chunks), received, message,
           _numbers(chunks.table, torch.int64, many.device), chunks.world, received.stride(0), BITS=code_bits(chunks.table),
           SUM_BITS=chunks.bits, TILE=TILE)  # fmt: skip


def decode_entries_many(
    sums: Tensor, many: TensorList, chunks: Chunks, bounds: Tensor, block: int, step: int
) -> Tensor:
    most, marks, tiles, clip = (
        chunks.table[-1] * chunks.world,
        Marks(sums, len(many)),
        many.tiles(TILE),
        many.clip(block),
    )
    share = _shares(tuple(range(most + 1)), most, many.device)
    launch(_decode, (len(tiles),), many.table, tiles, many.heads(clip), _sums_begin(many, chunks), sums, many.like,
           marks.clean, bounds, share, chunks.world, sums.stride(0), most, SUM_BITS=chunks.bits, LOG=block.bit_length() - 1,
           EVEN=many.even, TILE=TILE)  # fmt: skip
    rotate_back_many(sums, many, many, block, 0, step)
    return many.all_of(marks.clean)


def _sums_begin(many: TensorList, chunks: Chunks) -> Tensor:
    return many.numbers(("sums begin", chunks.world), lambda: chunks.sums[:-1], torch.int64)


@functools.cache
def _numbers(table: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """T on a device, copied there once."""
    return to_device(torch.tensor(table, dtype=dtype, device="cpu"), device, waits=True)


@functools.cache
def _shares(sums: tuple[int, ...], most: int, device: torch.device) -> Tensor:
    """The values of sums up to ``most``, in units of A, on a device, copied there once."""
    return to_device(share_of(host_int64(sums), 2 / most), device, waits=True)
