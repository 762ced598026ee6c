"""Fields of bit streams, searches in ascending lists, and scans of counts, for the Triton kernels of other families."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import launch


# ---- bit streams ----------------------------------------------------------------------------------------------------
@triton.jit
def load_bits(at, i, inside, width, bits):
    """int64: fields i, of 0 to 32 bits each, of a little-endian bit stream of ``width`` bytes."""
    return load_field(at, i * bits, inside, width, bits)


@triton.jit
def load_field(at, bit, inside, width, bits):
    """int64: the ``bits`` bits, 0 to 32, from ``bit`` on in ``width`` bytes. Of what does not begin ``inside``: anything."""
    byte = bit >> 3
    word = tl.zeros(bit.shape, tl.int32)
    if bits > 0:
        word = tl.load(at + byte, inside & (byte < width), 0).to(tl.int32)
    if bits > 1:
        word |= tl.load(at + byte + 1, inside & (byte + 1 < width), 0).to(tl.int32) << 8
    field = word.to(tl.int64)
    if bits > 9:
        more = tl.load(at + byte + 2, inside & (byte + 2 < width), 0).to(tl.int32)
        more |= tl.load(at + byte + 3, inside & (byte + 3 < width), 0).to(tl.int32) << 8
        more |= tl.load(at + byte + 4, inside & (byte + 4 < width), 0).to(tl.int32) << 16
        field |= more.to(tl.int64) << 16
    return (field >> (bit & 7)) & ((1 << bits) - 1)


@triton.jit
def pack_byte(values, o, n, bits):
    """uint8: bytes o of the little-endian bit stream of the low ``bits`` bits, 1 to 32, of each of n integers. The bytes of a
    program lie near each other: what it divides are their distances from the first.
    """
    begin = tl.min(o, 0).to(tl.int64) * 8
    first = begin // bits
    bit = (o * 8 - begin).to(tl.int32) + (begin - first * bits).to(tl.int32)  # from the first field on
    bits = (first - first + bits).to(tl.int32)
    mask = tl.full(o.shape, 0xFFFFFFFF, tl.uint32) >> (32 - bits).to(tl.uint32)
    field_of = bit // bits
    there = tl.minimum(n - first, 0x7FFFFFFF).to(tl.int32)
    byte = tl.zeros(o.shape, tl.uint32)
    for t in range((bits + 6) // bits + 1):
        j = field_of + t
        shift = j * bits - bit  # of this field into the byte; negative where it began in one before
        field = tl.load(values + first + j, (j < there) & (shift < 8), 0).to(tl.uint32) & mask
        right, left = tl.maximum(-shift, 0).to(tl.uint32), tl.minimum(tl.maximum(shift, 0), 8).to(tl.uint32)
        byte |= (field >> right) << left
    return (byte & 0xFF).to(tl.uint8)


@triton.jit
def bits_set(word):
    """Number of bits of each int32 that are set."""
    word = word.to(tl.uint32, bitcast=True)
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return ((word * 0x01010101) >> 24).to(tl.int32)


# ---- lists ----------------------------------------------------------------------------------------------------------
@triton.jit(do_not_specialize=["tiles"])
def scan_kernel(counts, begins, total, spans, tiles, MANY: tl.constexpr, CHUNK: tl.constexpr):
    """``counts [rows, tiles]`` int32 -> ``begins``: the sum of those before, in each row; ``total [rows]``: of all.

    MANY: of ``counts [planes, tiles]``, of which ``spans [rows, 2]`` says which are a row's, the first of them and how many;
    ``total [planes, rows]``.

    One program takes a row: nothing here depends on the order in which programs run.
    """
    row = tl.program_id(0).to(tl.int64)
    head = row * tiles
    if MANY:
        plane = tl.program_id(1).to(tl.int64)
        head = plane * tiles + tl.load(spans + 2 * row)
        tiles = tl.load(spans + 2 * row + 1)
        total += plane * tl.num_programs(0)
    lane = tl.arange(0, CHUNK)
    carry = tl.zeros((1,), tl.int32)
    for first in range(0, tiles, CHUNK):
        at = head + first + lane
        count = tl.load(counts + at, first + lane < tiles, 0)
        up_to = tl.cumsum(count, 0)
        tl.store(begins + at, carry + up_to - count, first + lane < tiles)
        carry += tl.sum(count, 0)
    tl.store(total + row + tl.zeros((1,), tl.int64), carry)


@triton.jit
def first_reaching(lists, bound, k, steps, inside, low, raised):
    """int64: of each list of k ascending int64 the place of the first that is at least ``bound``; k where none is. It is the
    number without its ``low`` lower bits that counts, with its place added ``raised`` times.

    steps: at least ``k.bit_length()``.
    """
    left = bound - bound
    right = left + k
    for _ in range(steps):
        middle = (left + right) // 2
        open_ = inside & (left < right)
        below = open_ & ((tl.load(lists + middle, open_, 0) >> low) + middle * raised < bound)
        right = tl.where(open_ & (below == 0), middle, right)
        left = tl.where(below, middle + 1, left)
    return left


@triton.jit
def first_of_each(lists, bound, k, steps, inside):
    """int64 ``[LISTS]``: as :func:`first_reaching`, of few lists, ``lists`` where each begins: 32 threads look for each, and
    what is left is the 32nd part each time.
    """
    lane = tl.arange(0, 32).to(tl.int64)[None, :]
    left = bound - bound
    size = left + tl.where(inside, k, 0)
    for _ in range((steps + 4) // 5):
        stride, end = (size >> 5) + 1, left + size
        at = left[:, None] + (lane + 1) * stride[:, None] - 1
        there = at < end[:, None]
        below = there & (tl.load(lists[:, None] + at, there, 0) < bound[:, None])
        left += tl.sum(below.to(tl.int32), 1) * stride
        size = tl.minimum(stride - 1, end - left)
    return left


@triton.jit
def reaching(lists, bound, k, low, raised):
    """int64: as :func:`first_reaching`, of one bound: all threads look, each at another part of what is left."""
    lane = tl.arange(0, 128)
    left, size = k - k, k
    while size > 0:
        stride = (size >> 7) + 1
        at = left + (lane + 1) * stride - 1
        inside = at < left + size
        below = inside & ((tl.load(lists + at, inside, 0) >> low) + at * raised < bound)
        end = left + size
        left += tl.sum(below.to(tl.int32), 0) * stride
        size = tl.minimum(stride - 1, end - left)
    return left


def scan(counts: Tensor, spans: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """``counts [rows, tiles]`` int32 -> (how many come before each in its row, ``[rows]`` how many there are). With ``spans
    [rows, 2]``: of ``[planes, tiles]``, and ``[planes, rows]``; see :func:`scan_kernel`.
    """
    planes, tiles = counts.shape
    rows, begins = (planes,) if spans is None else (len(spans), planes), torch.empty_like(counts)
    total = counts.new_zeros(rows[::-1])
    chunk = 1024 if tiles <= 1024 else 4096
    launch(scan_kernel, rows, counts, begins, total, spans, tiles, MANY=spans is not None, CHUNK=chunk)
    return begins, total
