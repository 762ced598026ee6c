"""Building blocks of the Triton kernels of all families.

Bits are those of the references: no operation is contracted (``launching.OPTIONS``), quotients are rounded to nearest
(``div_rn``), and sums of many numbers have the order of ``kernels.statistics``. Wires are read and written byte by byte, since
a float32 field may begin anywhere.

A tile of codes is ``[G, 8]``, or ``[G, 8]`` of which five columns count: the numbers of a row whose codes fill whole bytes.
"""

from __future__ import annotations

import triton
import triton.language as tl


# ---- numbers --------------------------------------------------------------------------------------------------------
@triton.jit
def load_tile(at, inside, full):
    """Loads a tile, 0 outside. ``full``: all of it is inside. Without a mask a thread reads 16 bytes at a time, which it
    else does only where the compiler knows that n is a multiple of 16.
    """
    if full:
        value = tl.load(at)
    else:
        value = tl.load(at, inside, 0)
    return value


@triton.jit
def store_tile(at, value, inside, full):
    """Writes what is inside; see :func:`load_tile`."""
    if full:
        tl.store(at, value)
    else:
        tl.store(at, value, inside)


@triton.jit
def load_number(x, i, inside, full=False):
    """float32: numbers at i, 0 outside, of float32, float16, or bfloat16, whose words come as int16 (``launching.launch``).

    The interpreter's bfloat16 does arithmetic on the words.
    """
    value = load_tile(x + i, inside, full)
    if x.dtype.element_ty == tl.int16:
        value = (value.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return value.to(tl.float32)


@triton.jit
def load_sum(x, e, i, inside, HAS_MEMORY: tl.constexpr, full=False):
    """``x + e`` at i, 0 outside."""
    p = load_number(x, i, inside, full)
    if HAS_MEMORY:
        p = p + load_tile(e + i, inside, full)
    return p


@triton.jit
def add_product(x, factor, y):
    """float32: ``x + factor y``, rounded once, without an instruction that fuses: see ``grace.compute.portable``."""
    product = factor.to(tl.float64) * y.to(tl.float64)
    x = x.to(tl.float64)
    total = product + x
    back = total - product
    lost = (product - (total - back)) + (x - back)
    word = total.to(tl.int64, bitcast=True)
    even = ((lost > 0) | (lost < 0)) & ((word & 1) == 0)
    word = tl.where(even, tl.where((lost > 0) == (total > 0), word + 1, word - 1), word)
    return word.to(tl.float64, bitcast=True).to(tl.float32)


@triton.jit
def word_of(x):
    """The bits of float32 numbers, int32."""
    return x.to(tl.int32, bitcast=True)


@triton.jit
def magnitude(x):
    """The bits of ``|x|``, int32: magnitudes in order, an inf or NaN above all others."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def negated(x):
    """``-x``, also of zeros: Triton's own minus takes them from zero."""
    return x * -1.0


@triton.jit
def mark_if(marks, bad):
    """Leaves a mark, which is a 0, if anything of ``bad`` is set; all programs would write the same."""
    if tl.max(tl.reshape(bad.to(tl.int32), (bad.numel,)), 0) != 0:
        tl.store(marks, 0)


@triton.jit
def round_half_even(y):
    """float32 -> int32: the nearest integer, of two the even one; ``|y| < 2**23``. From 2**23 on, a float32 is an integer."""
    size = ((tl.abs(y) + 8388608.0) - 8388608.0).to(tl.int32)
    return tl.where(y < 0, -size, size)


@triton.jit
def round_wide_half_even(y):
    """As :func:`round_half_even`, float64 -> int64: ``|y| < 2**52``."""
    size = ((tl.abs(y) + 4503599627370496.0) - 4503599627370496.0).to(tl.int64)
    return tl.where(y < 0, -size, size)


@triton.jit
def load_float(at, inside):
    """float32 from four bytes anywhere."""
    word = tl.load(at, inside, 0).to(tl.int32)
    word |= tl.load(at + 1, inside, 0).to(tl.int32) << 8
    word |= tl.load(at + 2, inside, 0).to(tl.int32) << 16
    word |= tl.load(at + 3, inside, 0).to(tl.int32) << 24
    return word.to(tl.float32, bitcast=True)


@triton.jit
def count_at(at):
    """The int32 of four bytes anywhere."""
    low = tl.load(at).to(tl.int32) | (tl.load(at + 1).to(tl.int32) << 8)
    return low | (tl.load(at + 2).to(tl.int32) << 16) | (tl.load(at + 3).to(tl.int32) << 24)


@triton.jit
def store_word(at, word, inside):
    """int32 as four bytes anywhere."""
    tl.store(at, (word & 0xFF).to(tl.uint8), inside)
    tl.store(at + 1, ((word >> 8) & 0xFF).to(tl.uint8), inside)
    tl.store(at + 2, ((word >> 16) & 0xFF).to(tl.uint8), inside)
    tl.store(at + 3, ((word >> 24) & 0xFF).to(tl.uint8), inside)


@triton.jit
def store_float(at, x, inside):
    """float32 as four bytes anywhere."""
    store_word(at, x.to(tl.int32, bitcast=True), inside)


@triton.jit
def power_of_two_as_float(exponent):
    """float32: ``2**exponent``, -126 <= exponent <= 127."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def any_power_of_two(exponent):
    """float32: ``2**exponent``, -149 <= exponent <= 127."""
    small = exponent < -126
    word = tl.where(small, 1 << tl.minimum(tl.maximum(exponent + 149, 0), 22), (tl.maximum(exponent, -126) + 127) << 23)
    return word.to(tl.float32, bitcast=True)


@triton.jit
def nearest_bfloat16(x):
    """float32: the nearest bfloat16 of each, ties to even; of finite numbers a finite one."""
    word = x.to(tl.int32, bitcast=True)
    size = word & 0x7FFFFFFF
    size = tl.minimum((size + 0x7FFF + ((size >> 16) & 1)) & ~0xFFFF, 0x7F7F0000)
    return (size | (word & ~0x7FFFFFFF)).to(tl.float32, bitcast=True)


# ---- codes ----------------------------------------------------------------------------------------------------------
@triton.jit
def store_codes(at, code, first, n, width, BITS: tl.constexpr, G: tl.constexpr):
    """Codes ``[G, 8]`` int32 of the numbers from ``first`` on, 0 outside, as a little-endian stream of fields of ``BITS``
    bits; ``BITS`` 0: base 3, five to a byte (three columns are 0). ``width``: the bytes of all n codes.
    """
    g = tl.arange(0, G)
    column = tl.arange(0, 8)
    if BITS == 0:
        power = tl.where(
            column == 0, 1, tl.where(column == 1, 3, tl.where(column == 2, 9, tl.where(column == 3, 27, 81)))
        )
        byte = tl.sum(tl.where(column[None, :] < 5, code * power[None, :], 0), 1)
        where = first // 5 + g
        tl.store(at + where, byte.to(tl.uint8), where < width)
    elif BITS > 8:  # eight of them are more than one word
        word = code.to(tl.int64).to(tl.uint64) << (column % 4 * BITS).to(tl.uint64)[None, :]
        low = tl.sum(tl.where(column[None, :] < 4, word, 0), 1)  # [G]: four each
        high = tl.sum(tl.where(column[None, :] < 4, 0, word), 1)
        o = tl.arange(0, 16)
        right = 8 * o - 4 * BITS  # of high into each byte; negative where it begins there
        byte = tl.where(o < 8, low[:, None] >> (8 * o % 64).to(tl.uint64)[None, :], 0)
        byte |= tl.where(right < 0, 0, high[:, None] >> tl.maximum(right, 0).to(tl.uint64)[None, :])
        byte |= tl.where(right < 0, high[:, None] << tl.minimum(tl.maximum(-right, 0), 8).to(tl.uint64)[None, :], 0)
        where = (first // 8 * BITS + g * BITS)[:, None] + o[None, :]
        tl.store(at + where, (byte & 0xFF).to(tl.uint8), (o < BITS)[None, :] & (where < width))
    elif BITS == 8:
        where = first + tl.arange(0, G)[:, None] * 8 + column[None, :]
        store_tile(at + where, code.to(tl.uint8), where < width, first + 8 * G <= width)
    elif 8 % BITS == 0:
        shift = column % (8 // BITS) * BITS
        byte = tl.sum(tl.reshape(code << shift[None, :], (G, BITS, 8 // BITS)), 2)
        where = first // 8 * BITS + g[:, None] * BITS + tl.arange(0, BITS)[None, :]
        tl.store(at + where, byte.to(tl.uint8), where < width)
    else:
        word = tl.sum(code.to(tl.int64) << (column * BITS).to(tl.int64)[None, :], 1)  # [G]; the fields are disjoint
        byte = (word[:, None] >> (8 * column).to(tl.int64)[None, :]) & 0xFF
        where = (first // 8 * BITS + g * BITS)[:, None] + column[None, :]
        tl.store(at + where, byte.to(tl.uint8), (column < BITS)[None, :] & (where < width))


@triton.jit
def digit_of(byte, place):
    """int32: the digit in base 3 of each byte, int32, at its place, 0 to 4, of which 0 is the lowest."""
    share = tl.where(place == 2, 7282, tl.where(place == 3, 2428, 810))  # of 2**16 by a power of 3, rounded up
    share = tl.where(place == 0, 65536, tl.where(place == 1, 21846, share))
    return ((byte * share) >> 16) % 3


@triton.jit
def load_digit(at, i, inside):
    """(int32: digits i of a stream in base 3, five to a byte; whether their bytes are such as a sender writes)."""
    byte = tl.load(at + i // 5, inside, 0).to(tl.int32)
    return digit_of(byte, i % 5), byte <= 242


@triton.jit
def _load_field(at, i, inside, width, BITS: tl.constexpr):
    byte = i * BITS // 8
    word = tl.load(at + byte, inside, 0).to(tl.int32)
    if 8 % BITS != 0:
        word |= tl.load(at + byte + 1, inside & (byte + 1 < width), 0).to(tl.int32) << 8
    if BITS > 9:
        word |= tl.load(at + byte + 2, inside & (byte + 2 < width), 0).to(tl.int32) << 16
    code = (word >> (i * BITS % 8).to(tl.int32)) & ((1 << BITS) - 1)
    return code, code >= 0


@triton.jit
def load_code(at, i, inside, width, BITS: tl.constexpr):
    """(int32: the codes of numbers i, whether their bytes are such as a sender writes); ``BITS`` and ``width`` as above."""
    if BITS == 0:
        code, good = load_digit(at, i, inside)
    else:
        code, good = _load_field(at, i, inside, width, BITS)
    return code, good


@triton.jit
def positions_of(tile, G: tl.constexpr, PER: tl.constexpr):
    """(first number of a tile, ``[G, 8]`` its positions, ``[G, 8]`` whether a column counts): PER is 8 or 5."""
    first = tile * G * PER
    column = tl.arange(0, 8)[None, :]
    i = first + tl.arange(0, G)[:, None] * PER + column
    return first, i, (column < PER) & (i >= 0)


# ---- one number for each block --------------------------------------------------------------------------------------
@triton.jit
def block_max_kernel(x, e, top, n, block, nb, HAS_MEMORY: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr):
    """``top [b, nb]`` int32, zeros before: the bits of the largest magnitude of ``x + e`` in each block, of any size.

    A program: CHUNK numbers of each of ROWS blocks. Integers have one maximum, whatever the order.
    """
    row = tl.program_id(1).to(tl.int64)
    group, inner = chunk_of(block, CHUNK)
    block_max_of(x, e, top, row, group * ROWS + tl.arange(0, ROWS), inner, n, block, nb, HAS_MEMORY)


@triton.jit
def chunk_of(block, CHUNK: tl.constexpr):
    """(the group of blocks that this program reads, ``[CHUNK]`` which of their numbers). Chunks of a group lie side by side
    on the first axis of the grid, the only one on which there may be more than 65,535 programs.
    """
    chunks = (block + CHUNK - 1) // CHUNK
    program = tl.program_id(0).to(tl.int64)
    return program // chunks, program % chunks * CHUNK + tl.arange(0, CHUNK)


@triton.jit
def block_max_of(x, e, top, row, k, inner, n, block, nb, HAS_MEMORY: tl.constexpr):
    """As :func:`block_max_kernel`, of the numbers ``inner`` of the blocks k of a row."""
    begin = (row * n + k * block)[:, None]
    left = tl.minimum(n - k * block, block)[:, None]
    inside = inner[None, :] < left
    full = tl.min(inside.to(tl.int32)) > 0
    p = load_sum(x + begin, e + begin, inner[None, :], inside, HAS_MEMORY, full)
    tl.atomic_max(top + row * nb + k, tl.max(magnitude(p), 1), k < nb)


@triton.jit
def halves(lanes, ROWS: tl.constexpr):
    """``[ROWS, 16]`` -> ``[ROWS]``: the upper half of the lanes is added to the lower, four times."""
    lanes = tl.sum(tl.reshape(lanes, (ROWS, 2, 8)), 1)
    lanes = tl.sum(tl.reshape(lanes, (ROWS, 2, 4)), 1)
    lanes = tl.sum(tl.reshape(lanes, (ROWS, 2, 2)), 1)
    return tl.sum(lanes, 1)


@triton.jit
def _measure(p, inside, tau, KIND: tl.constexpr):
    if KIND == 0:  # magnitudes
        value = tl.abs(p)
    elif KIND == 1:  # squares
        value = p
    else:  # what is on the upper side of tau
        value = tl.where((p >= tau) & inside, p, 0.0)
    wide = value.to(tl.float64)
    if KIND == 1:
        wide = wide * wide
    return wide


@triton.jit
def piece_sum_kernel(
    x, e, out, plane, n, block, pieces, count, turns, tau,
    KIND: tl.constexpr, HAS_MEMORY: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """``out [b, count]`` float64: the ordered sums of the pieces of 4,096 numbers, ``count = nb pieces`` of each row. KIND 2:
    of what is on the upper side of tau; ``plane`` numbers further of the lower side, and again how many are on the upper.

    turns: how often each of the 16 lanes adds; B is at most n.
    """
    row = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    piece_sum_of(x, e, out, plane, row, j, n, block, pieces, count, turns, tau, KIND, HAS_MEMORY, ROWS)


@triton.jit
def piece_sum_of(
    x, e, out, plane, row, j, n, block, pieces, count, turns, tau,
    KIND: tl.constexpr, HAS_MEMORY: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """As :func:`piece_sum_kernel`, of the pieces j of a row."""
    begin = (j % pieces) * 4096
    start = (j // pieces) * block + begin
    left = tl.minimum(tl.minimum(block - begin, n - start), 4096).to(tl.int32)
    at = row * n + start
    total, lower, above = sum_pieces(x, e, at, left, turns, tau, KIND, HAS_MEMORY, ROWS)
    at = out + row * count + j
    tl.store(at, total, j < count)
    if KIND == 2:
        tl.store(at + plane, lower, j < count)
        tl.store(at + 2 * plane, above, j < count)


@triton.jit
def sum_pieces(x, e, at, left, turns, tau, KIND: tl.constexpr, HAS_MEMORY: tl.constexpr, ROWS: tl.constexpr):
    """float64 ``[ROWS]``: the ordered sums of pieces that begin at ``at [ROWS]``, of ``left [ROWS]`` int32 numbers; with KIND
    2 also of what is on the lower side of tau, and how many are on the upper.
    """
    lane = tl.arange(0, 16)[None, :]
    total = tl.full((ROWS, 16), -0.0, tl.float64)  # which changes nothing that is added to it
    lower = total
    above = tl.full((ROWS, 16), 0.0, tl.float64)
    for t in tl.range(0, turns, loop_unroll_factor=8):  # so that eight loads are under way
        inside = lane + 16 * t < left[:, None]
        p = load_sum(x + at[:, None], e + at[:, None], lane + 16 * t, inside, HAS_MEMORY)
        total += _measure(p, inside, tau, KIND)
        if KIND == 2:
            lower += tl.where(p >= tau, 0.0, p).to(tl.float64)
            above += ((p >= tau) & inside).to(tl.float64)
    return halves(total, ROWS), halves(lower, ROWS), halves(above, ROWS)


@triton.jit
def join_pieces_kernel(pieces_of, out, blocks, pieces, ROWS: tl.constexpr):
    """``pieces_of [blocks, pieces]`` float64 -> ``out [blocks]``: added in order."""
    k = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = k < blocks
    total = tl.load(pieces_of + k * pieces, inside, 0.0)
    for j in range(1, pieces):
        total += tl.load(pieces_of + k * pieces + j, inside, 0.0)
    tl.store(out + k, total, inside)


# ---- Hadamard's transform -------------------------------------------------------------------------------------------
@triton.jit
def pieces_at(r, left, LOG: tl.constexpr):
    """int32: the numbers whose highest bit is how long the piece is in which number r of those of some blocks is transformed,
    int32, when a row has ``left`` more; 1 for those that stay as they are.
    """
    rest = tl.minimum(left - (r >> LOG << LOG), 1 << LOG)
    size = (r & ((1 << LOG) - 1)) ^ rest  # the highest bit that rest has and r has not, of those where they differ
    return tl.where(size >= (1 << LOG if LOG < 4 else 16), size, 1)


@triton.jit
def root_of(size):
    """The float32 nearest to ``1 / sqrt(size)`` for the highest bit of each size."""
    power = (size.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
    even = (127 - power // 2) << 23
    odd = ((126 - power // 2) << 23) | 0x3504F3  # 1/sqrt(2)
    return tl.where((power & 1) == 0, even, odd).to(tl.float32, bitcast=True)


@triton.jit
def turn_pairs(y, size, near, S: tl.constexpr, TILE: tl.constexpr):
    """Pairs S apart, which in the row are ``near`` apart: (p, q) becomes (p + q, p - q) in pieces that are longer, of which
    ``size`` has the highest bits.
    """
    p, q = tl.split(tl.permute(tl.reshape(y, (TILE // (2 * S), 2, S)), (0, 2, 1)))
    turned = tl.reshape(tl.permute(tl.join(p + q, p - q), (0, 2, 1)), (TILE,))
    return tl.where(size >= 2 * near, turned, y)
