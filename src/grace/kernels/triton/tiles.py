"""Tiles of a row: numbers ``first + lane``, SPAN of them. ``first`` is an int64, lanes are int32: arithmetic in 64 bits takes
two to four times as many instructions, and a quotient of theirs eighty. So the size of blocks is known to the compiler. But n
is not: of an n that is 1, or that 16 divides, pairs of codes are half used, and ptxas 12.8 forgets to add a constant to them.

What belongs to blocks, such as their scales, is a vector ``[NB]``: a number for each of the tile's blocks where the tile has
a power of two of them, one if a block is a multiple of the tile, and two if it is longer otherwise. Elsewhere each number has
that of its own block.
"""

from __future__ import annotations

import triton
import triton.language as tl

from grace.kernels.triton import load_code, load_digit, load_float, load_sum, magnitude, mark_if, store_float


@triton.jit
def left_of(n, first, SPAN: tl.constexpr):
    """int32: how many of the SPAN numbers from ``first`` on there are."""
    return tl.minimum(n - first, SPAN).to(tl.int32)


@triton.jit
def lanes_of(G: tl.constexpr, PER: tl.constexpr):
    """``[G, 8]`` int32: the numbers of a tile, PER in a row, 8 or 5, whose codes fill whole bytes; of 5 no others count."""
    return tl.arange(0, G)[:, None] * PER + tl.arange(0, 8)[None, :]


@triton.jit
def sum_of_tile(x, e, bad, tile, start, n, lane, HAS_MEMORY: tl.constexpr, SPAN: tl.constexpr):
    """The input of one program: (the tile's first number in its row, and in x and e, which lanes count, whether all of them
    do, ``x + e``). Sets the status flag if one is not finite. ``lane``: :func:`lanes_of`, or ``[SPAN]``.
    """
    first = tile * SPAN
    left = left_of(n, first, SPAN)
    begin, inside, full = start + first, lane < left, (lane.numel == SPAN) & (left == SPAN)
    if lane.numel != SPAN:
        inside = inside & (tl.arange(0, 8)[None, :] < 5)
    p = load_sum(x + begin, e + begin, lane, inside, HAS_MEMORY, full)
    mark_if(bad, magnitude(p) >= 0x7F800000)
    return first, begin, inside, full, p


# ---- blocks ---------------------------------------------------------------------------------------------------------
@triton.jit
def within(first, lane, BLOCK: tl.constexpr):
    """int32: how far numbers are from where the tile's first block begins, which is shorter than the tile."""
    return (first % BLOCK).to(tl.int32) + lane


@triton.jit
def of_blocks(at, first, lane, inside, n, BLOCK: tl.constexpr, SPAN: tl.constexpr):
    """The numbers at ``at``, one for each block of a row: of the tile's blocks, or of each number's."""
    if BLOCK >= SPAN or (SPAN % BLOCK == 0 and (SPAN & (SPAN - 1)) == 0):
        k = first // BLOCK + tl.arange(0, SPAN // BLOCK if BLOCK < SPAN else 1 if BLOCK % SPAN == 0 else 2)
        value = tl.load(at + k, k * BLOCK < n, 0)
    else:
        value = tl.load(at + first // BLOCK + within(first, lane, BLOCK) // BLOCK, inside, 0)
    return value


@triton.jit
def fields_of_blocks(base, first, lane, inside, n, BLOCK: tl.constexpr, SPAN: tl.constexpr, APART: tl.constexpr = 4):
    """As :func:`of_blocks`, float32 fields of a wire, of four bytes anywhere, those of two blocks so many bytes apart."""
    if BLOCK >= SPAN or (SPAN % BLOCK == 0 and (SPAN & (SPAN - 1)) == 0):
        k = first // BLOCK + tl.arange(0, SPAN // BLOCK if BLOCK < SPAN else 1 if BLOCK % SPAN == 0 else 2)
        value = load_float(base + APART * k, k * BLOCK < n)
    else:
        value = load_float(base + APART * (first // BLOCK) + within(first, lane, BLOCK) // BLOCK * APART, inside)
    return value


@triton.jit
def store_fields(base, value, first, lane, inside, n, BLOCK: tl.constexpr, SPAN: tl.constexpr, APART: tl.constexpr = 4):
    """Writes the float32 fields of the blocks that begin in this tile; ``value`` as :func:`of_blocks` has it."""
    if BLOCK >= SPAN or (SPAN % BLOCK == 0 and (SPAN & (SPAN - 1)) == 0):
        k = first // BLOCK + tl.arange(0, SPAN // BLOCK if BLOCK < SPAN else 1 if BLOCK % SPAN == 0 else 2)
        store_float(base + APART * k, value, (k * BLOCK >= first) & (k * BLOCK < tl.minimum(first + SPAN, n)))
    else:
        i = within(first, lane, BLOCK)
        store_float(base + APART * (first // BLOCK) + i // BLOCK * APART, value, inside & (i % BLOCK == 0))


@triton.jit
def store_heads(base, value, first, lane, inside, n, BLOCK: tl.constexpr, SPAN: tl.constexpr):
    """As :func:`store_fields`, the low bytes of integers."""
    byte = (value & 0xFF).to(tl.uint8)
    if BLOCK >= SPAN or (SPAN % BLOCK == 0 and (SPAN & (SPAN - 1)) == 0):
        k = first // BLOCK + tl.arange(0, SPAN // BLOCK if BLOCK < SPAN else 1 if BLOCK % SPAN == 0 else 2)
        tl.store(base + k, byte, (k * BLOCK >= first) & (k * BLOCK < tl.minimum(first + SPAN, n)))
    else:
        i = within(first, lane, BLOCK)
        tl.store(base + first // BLOCK + i // BLOCK, byte, inside & (i % BLOCK == 0))


@triton.jit
def spread(value, first, lane, BLOCK: tl.constexpr, SPAN: tl.constexpr):
    """Spreads what :func:`of_blocks` has of a block to each of its numbers."""
    if BLOCK >= SPAN and BLOCK % SPAN != 0:
        own, following = tl.split(tl.reshape(value, (1, 2)))
        border = tl.minimum(BLOCK - first % BLOCK, SPAN).to(tl.int32)
        shape: tl.constexpr = (1,) * len(lane.shape)
        value = tl.where(lane < border, tl.reshape(own, shape), tl.reshape(following, shape))
    elif BLOCK >= SPAN or (SPAN % BLOCK == 0 and (SPAN & (SPAN - 1)) == 0):
        NB: tl.constexpr = SPAN // BLOCK if BLOCK < SPAN else 1
        value = tl.reshape(tl.broadcast_to(value[:, None], (NB, SPAN // NB)), lane.shape)
    return value


@triton.jit
def tops_of_blocks(word, BLOCK: tl.constexpr, SPAN: tl.constexpr):
    """``[NB]``: the largest of the integers ``word`` in each block, where none is longer than the tile."""
    return tl.max(tl.reshape(word, (SPAN // BLOCK, BLOCK)), 1)


@triton.jit
def least_of_blocks(x, inside, BLOCK: tl.constexpr, SPAN: tl.constexpr):
    """``[NB]``: the least of the numbers of each block that are inside, where none is longer than the tile; inf of none."""
    return tl.min(tl.reshape(tl.where(inside, x, float("inf")), (SPAN // BLOCK, BLOCK)), 1)


# ---- codes ----------------------------------------------------------------------------------------------------------
@triton.jit
def load_codes(at, first, lane, inside, width, BITS: tl.constexpr):
    """(int32: the codes of a tile's numbers, whether their bytes are such as a sender writes), of a row of ``width`` bytes.
    ``BITS`` 0: base 3, five to a byte. ``first`` is a multiple of 8.
    """
    if BITS == 0:
        code, good = load_digit(at + first // 5, (first % 5).to(tl.int32) + lane, inside)
    else:
        ahead = first // 8 * BITS
        code, good = load_code(at + ahead, lane, inside, width - ahead, BITS)
    return code, good
