"""The random operations as Triton kernels, and what kernels of other families draw from a stream.

Words are uint32: sums wrap around, shifts to the right are logical.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE, launch, signed
from grace.compute.portable import ANGLE_TERMS, LOG_2, LOG_TERMS, ROOT_HALF
from grace.flags.capturing import step_word
from grace.random.reference import SORTED_SUBSET, half_bits

if TYPE_CHECKING:
    from grace.random import Stream

NORMAL = {
    "LOG_2": LOG_2, "ROOT_HALF": ROOT_HALF, "TURN": 2 * math.pi, "LOG_TERMS": LOG_TERMS, "ANGLE_TERMS": ANGLE_TERMS,
}  # fmt: skip
DRAWN = 128  # numbers of a program that walk: all wait for the last one


@triton.jit
def _turn(x0, x1, r: tl.constexpr):
    x0 = x0 + x1
    return x0, ((x1 << r) | (x1 >> (32 - r))) ^ x0


@triton.jit
def _turns_even(x0, x1):
    x0, x1 = _turn(x0, x1, 13)
    x0, x1 = _turn(x0, x1, 15)
    x0, x1 = _turn(x0, x1, 26)
    return _turn(x0, x1, 6)


@triton.jit
def _turns_odd(x0, x1):
    x0, x1 = _turn(x0, x1, 17)
    x0, x1 = _turn(x0, x1, 29)
    x0, x1 = _turn(x0, x1, 16)
    return _turn(x0, x1, 24)


@triton.jit
def threefry(key0, key1, counter, step):
    """Threefry-2x32 with 20 rounds, as ``grace.random``: uint32 counters -> two uint32 words each. Keys and step are int32;
    the step may be where one lies.
    """
    if step.dtype.is_ptr():
        step = tl.load(step)
    k0 = tl.zeros_like(counter) + key0.to(tl.uint32, bitcast=True)
    k1 = tl.zeros_like(counter) + key1.to(tl.uint32, bitcast=True)
    k2 = k0 ^ k1 ^ 0x1BD11BDA
    x0 = counter + k0
    x1 = k1 + step.to(tl.uint32, bitcast=True)
    x0, x1 = _turns_even(x0, x1)
    x0, x1 = _turns_odd(x0 + k1, x1 + k2 + 1)
    x0, x1 = _turns_even(x0 + k2, x1 + k0 + 2)
    x0, x1 = _turns_odd(x0 + k0, x1 + k1 + 3)
    x0, x1 = _turns_even(x0 + k1, x1 + k2 + 4)
    return x0 + k2, x1 + k0 + 5


@triton.jit
def lanes_at(key0, key1, step, position):
    """int32 in [0, 65536): the lanes of a stream at these positions, one by one."""
    low, high = threefry(key0, key1, (position >> 2).to(tl.uint32), step)
    word = tl.where((position & 2) == 0, low, high)
    return (tl.where((position & 1) == 0, word, word >> 16) & 0xFFFF).to(tl.int32)


@triton.jit
def lanes_of_tile(key0, key1, step, first, G: tl.constexpr):
    """``[G, 8]`` int32: the lanes from position ``first`` on, a multiple of 4; four to each call of the generator."""
    counter = (first >> 2) + tl.arange(0, 2 * G)
    low, high = threefry(key0, key1, counter.to(tl.uint32), step)
    pairs = tl.join(
        tl.join(low & 0xFFFF, high & 0xFFFF), tl.join(low >> 16, high >> 16)
    )  # [2 G, half, word] -> order below
    return tl.reshape(pairs, (G, 8)).to(tl.int32)


@triton.jit
def sign_words(key0, key1, step, first, TILE: tl.constexpr):
    """``[TILE / 32]`` uint32: the words of a stream with the bits from ``first`` on, a multiple of 64."""
    low, high = threefry(key0, key1, ((first >> 6) + tl.arange(0, TILE // 64)).to(tl.uint32), step)
    return tl.reshape(tl.join(low, high), (TILE // 32,))


@triton.jit
def signs_of_tile(key0, key1, step, first, TILE: tl.constexpr):
    """``[TILE]`` uint32, 0 or 1: the bits of a stream's words from ``first`` on, a multiple of 64."""
    words = sign_words(key0, key1, step, first, TILE)
    return tl.reshape((words[:, None] >> tl.arange(0, 32).to(tl.uint32)[None, :]) & 1, (TILE,))


@triton.jit
def signs_at(key0, key1, step, i):
    """uint32, 0 or 1: the bits of a stream's words at positions i."""
    low, high = threefry(key0, key1, (i >> 6).to(tl.uint32), step)
    return (tl.where((i & 32) == 0, low, high) >> (i & 31).to(tl.uint32)) & 1


@triton.jit
def _natural_log(x, LOG_2: tl.constexpr, ROOT_HALF: tl.constexpr, TERMS: tl.constexpr):
    """As :func:`grace.compute.portable.natural_log`."""
    bits = x.to(tl.int64, bitcast=True)
    power = ((bits >> 52) - 1022).to(tl.float64)
    mantissa = ((bits & 0xFFFFFFFFFFFFF) | 0x3FE0000000000000).to(tl.float64, bitcast=True)  # in [1/2, 1)
    low = mantissa < ROOT_HALF
    mantissa = tl.where(low, mantissa * 2, mantissa)
    power -= low.to(tl.float64)
    s = (mantissa - 1) / (mantissa + 1)
    square = s * s
    series = tl.zeros_like(s) + 1 / (2 * TERMS - 1)
    for term in tl.static_range(TERMS - 2, -1, -1):
        series = series * square + 1 / (2 * term + 1)
    return series * s * 2 + power * LOG_2


@triton.jit
def _cosine_and_sine(turns, TURN: tl.constexpr, TERMS: tl.constexpr):
    """As :func:`grace.compute.portable.cosine_and_sine`."""
    quarter = (turns * 4 + 4503599627370496.0) - 4503599627370496.0  # the nearest integer, of two the even one
    angle = (turns - quarter * 0.25) * TURN
    square = angle * angle
    cosine = tl.zeros_like(square) + 1
    sine = cosine
    for term in tl.static_range(TERMS - 1, 0, -1):
        cosine = 1 - square * cosine * (1 / ((2 * term - 1) * (2 * term)))
        sine = 1 - square * sine * (1 / ((2 * term) * (2 * term + 1)))
    sine = angle * sine
    whole = quarter.to(tl.int32)
    swapped = (whole & 1) == 1
    other = tl.where(swapped, cosine, sine)
    cosine = tl.where(swapped, sine, cosine)
    turned = whole & 3
    cosine = tl.where((turned == 1) | (turned == 2), cosine * -1.0, cosine)
    return cosine, tl.where(turned >= 2, other * -1.0, other)


@triton.jit
def normals_of(
    key0, key1, step, group,
    LOG_2: tl.constexpr, ROOT_HALF: tl.constexpr, TURN: tl.constexpr, LOG_TERMS: tl.constexpr, ANGLE_TERMS: tl.constexpr,
):  # fmt: skip
    """float32: the normal numbers 2 group and 2 group + 1 of a stream; the constants are :data:`NORMAL`."""
    low, high = threefry(key0, key1, group.to(tl.uint32), step)
    first = (low.to(tl.int32, bitcast=True).to(tl.float64) + 2147483648.5) * 2.3283064365386963e-10  # in (0, 1)
    second = (high.to(tl.int32, bitcast=True).to(tl.float64) + 2147483648.5) * 2.3283064365386963e-10
    radius = tl.sqrt(_natural_log(first, LOG_2, ROOT_HALF, LOG_TERMS) * -2)
    cosine, sine = _cosine_and_sine(second, TURN, ANGLE_TERMS)
    return (radius * cosine).to(tl.float32), (radius * sine).to(tl.float32)


@triton.jit(do_not_specialize=["key0", "key1", "step", "first"])
def _words(out, n, key0, key1, step, first, TILE: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    low, high = threefry(key0, key1, (first + i).to(tl.uint32), step)
    tl.store(out + 2 * i, low.to(tl.int32, bitcast=True), i < n)
    tl.store(out + 2 * i + 1, high.to(tl.int32, bitcast=True), i < n)


@triton.jit(do_not_specialize=["key0", "key1", "step", "first"])
def _uniform(out, n, key0, key1, step, first, TILE: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    lane = lanes_at(key0, key1, step, first + i)
    tl.store(out + i, (lane.to(tl.float32) + 0.5) * 0.0000152587890625, i < n)


@triton.jit
def _hash32(x):
    """As the reference's: a full-avalanche hash of 32-bit words."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def walk(i, inside, n, half, key0, key1, step):
    """int64: images of i, which are below n, under a permutation of [0, n): each walks until it lies below n. Nobody asks the
    host. 0's image where not ``inside``.
    """
    low = (1 << half.to(tl.int64)) - 1
    mask, upper, lower = low.to(tl.uint32), ((n - 1) >> half).to(tl.uint32), ((n - 1) & low).to(tl.uint32)
    image = tl.where(inside, i, 0)
    left, right = (image >> half).to(tl.uint32), (image & low).to(tl.uint32)
    turn = tl.arange(0, 8)
    keys, _high = threefry(key0, key1, turn.to(tl.uint32), step)
    keys = keys.to(tl.int32, bitcast=True)
    k0 = tl.sum(tl.where(turn == 0, keys, 0), 0).to(tl.uint32, bitcast=True)
    k1 = tl.sum(tl.where(turn == 1, keys, 0), 0).to(tl.uint32, bitcast=True)
    k2 = tl.sum(tl.where(turn == 2, keys, 0), 0).to(tl.uint32, bitcast=True)
    k3 = tl.sum(tl.where(turn == 3, keys, 0), 0).to(tl.uint32, bitcast=True)
    k4 = tl.sum(tl.where(turn == 4, keys, 0), 0).to(tl.uint32, bitcast=True)
    k5 = tl.sum(tl.where(turn == 5, keys, 0), 0).to(tl.uint32, bitcast=True)
    away = (left >= 0).to(tl.int32)
    while tl.max(away, 0) > 0:
        p, q = left, right
        p = p ^ (_hash32(q ^ k0) & mask)
        q = q ^ (_hash32(p ^ k1) & mask)
        p = p ^ (_hash32(q ^ k2) & mask)
        q = q ^ (_hash32(p ^ k3) & mask)
        p = p ^ (_hash32(q ^ k4) & mask)
        q = q ^ (_hash32(p ^ k5) & mask)
        left, right = tl.where(away > 0, p, left), tl.where(away > 0, q, right)
        # still at n or above: upper and lower are the halves of n - 1
        away = ((left > upper) | ((left == upper) & (right > lower))).to(tl.int32)
    return (left.to(tl.int64) << half) | right.to(tl.int64)


@triton.jit(do_not_specialize=["n", "half", "key0", "key1", "step"])
def _walk(out, count, n, half, key0, key1, step, TILE: tl.constexpr):
    """Images of 0, 1, ... under a permutation of [0, n)."""
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    tl.store(out + i, walk(i, i < count, n, half, key0, key1, step), i < count)


@triton.jit
def rank_of(first, n, key0, key1, step, CHUNK: tl.constexpr, TILE: tl.constexpr):
    """int32 ``[TILE]``: where each number from ``first`` on stands among [0, n) in the order of their 64 random bits. No two
    are equal: the generator is a permutation of its counters.
    """
    each = _sort_key(first + tl.arange(0, 4 * TILE) % TILE, key0, key1, step)
    own = tl.max(tl.reshape(each, (4, TILE)), 0)  # what is reduced is computed once, and not by each thread for itself
    ahead = tl.zeros((TILE, CHUNK), tl.int32)
    for begin in range(0, n, CHUNK):
        other = begin + tl.arange(0, CHUNK)
        theirs = tl.where(
            other < n, _sort_key(other, key0, key1, step), 0x7FFFFFFFFFFFFFFF
        )  # nobody is behind the largest
        ahead += (theirs[None, :] < own[:, None]).to(tl.int32)
    return tl.sum(ahead, 1)


@triton.jit
def _sort_key(i, key0, key1, step):
    high, low = threefry(key0, key1, i.to(tl.uint32), step)
    return (high.to(tl.int32, bitcast=True).to(tl.int64) << 32) + low.to(tl.int32, bitcast=True).to(tl.int64)


def fill_words(out: Tensor, rng: Stream, first: int) -> None:
    key0, key1 = rng.key()
    n = len(out)
    launch(
        _words, (-(-n // TILE),), out, n, signed(key0), signed(key1), step_word(rng.step, out.device), first, TILE=TILE
    )


def fill_uniform(out: Tensor, rng: Stream, first: int) -> None:
    key0, key1 = rng.key()
    n = out.numel()
    launch(
        _uniform,
        (-(-n // TILE),),
        out,
        n,
        signed(key0),
        signed(key1),
        step_word(rng.step, out.device),
        first,
        TILE=TILE,
    )


def fill_subset(out: Tensor, rng: Stream, n: int) -> Any:
    if n <= SORTED_SUBSET:
        return NotImplemented
    half = half_bits(n)
    key0, key1, step = *map(signed, rng.key()), step_word(rng.step, out.device)
    launch(_walk, (-(-out.numel() // DRAWN),), out, out.numel(), n, half, key0, key1, step, TILE=DRAWN)
    return None
