"""Decoding of codes, for the Triton kernels of other families. KIND: which of :data:`grace.kernels.sparse_codes.Codes` it is;
MOST: its ``most``. Fronts are int32 words, the bits of a float32 or an exponent; or int64, those of two float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from grace.kernels.sparse_codes import Codes
from grace.kernels.triton import load_float, magnitude, power_of_two_as_float, word_of
from grace.kernels.triton.bit_streams import load_bits


@triton.jit
def code_of_number(p, word, KIND: tl.constexpr, MOST: tl.constexpr):
    """int32: the codes of numbers that are sent; of others anything."""
    if KIND == 1:
        tau, size = word.to(tl.float32, bitcast=True), tl.abs(p)
        quotient = tl.minimum(tl.div_rn(size, tl.zeros_like(size) + tau), MOST * 1.0)
        level = tl.maximum(quotient.to(tl.int32).to(tl.float32), 1.0)
        level = tl.maximum(level - (level * tau > size).to(tl.float32), 1.0)
        code = (p > 0).to(tl.int32) | ((level.to(tl.int32) - 1) << 1)
    elif KIND == 3:
        code = (p > 0).to(tl.int32)
    else:
        small = (magnitude(p) < 0x00800000).to(tl.int32)
        size = magnitude(tl.where(small > 0, p * 16777216.0, p))
        power = (size >> 23) - 24 * small + ((size >> 22) & 1)
        code = tl.maximum(word - power, 0) | ((p < 0).to(tl.int32) << 3)
    return code


@triton.jit
def number_of_code(code, word, KIND: tl.constexpr):
    """float32: what codes stand for."""
    if KIND == 1:
        size = ((code >> 1) + 1).to(tl.float32) * word.to(tl.float32, bitcast=True)
        positive = (code & 1) > 0
    elif KIND == 3:
        positive = (code & 1) > 0
        upper, lower = word.to(tl.int32), (word >> 32).to(tl.int32)
        size = tl.where(positive, upper, lower).to(tl.float32, bitcast=True)
    else:
        last = (word == 0).to(tl.int32)  # 2**-127 is not normal
        size = power_of_two_as_float(tl.minimum(word + last, 254) - 127) * power_of_two_as_float(-(code & 7) - last)
        positive = (code >> 3) == 0
    return tl.where(positive, size, size * -1.0)


@triton.jit
def front_bytes_of(KIND: tl.constexpr):
    """Bytes of a header."""
    return 4 if KIND == 1 else 8 if KIND == 3 else 1


@triton.jit
def front_at(at, KIND: tl.constexpr):
    """The front of a wire; whether it is such as a sender writes."""
    if KIND == 1:
        front = load_float(at, True)
        word = word_of(front)
        good = (front >= 0) & (front < float("inf"))
    elif KIND == 3:
        front, other = load_float(at, True), load_float(at + 4, True)
        word = (word_of(front).to(tl.int64) & 0xFFFFFFFF) | (word_of(other).to(tl.int64) << 32)
        good = (front >= 0) & (front < float("inf")) & (other >= 0) & (other < float("inf"))
    else:
        word = tl.load(at).to(tl.int32)
        good = word <= 254
    return word, good


@triton.jit
def load_coded(at, j, inside, k, KIND: tl.constexpr, MOST: tl.constexpr, BITS: tl.constexpr):
    """(float32: the numbers j of k that follow a front; whether their codes are such as a sender writes)"""
    word, fine = front_at(at, KIND)
    code = load_bits(at + front_bytes_of(KIND), j, inside, (k * BITS + 7) // 8, BITS).to(tl.int32)
    value = number_of_code(code, word, KIND)
    good = (magnitude(value) < 0x7F800000) & (fine != 0)
    if KIND == 1:
        good = good & (code >> 1 < MOST)
    return value, good


def coding(codes: Codes | None) -> dict[str, int]:
    """Codes as constants of a kernel."""
    if codes is None:
        return {"KIND": 0, "MOST": 0, "BITS": 0}
    return {"KIND": codes.kind, "MOST": codes.most, "BITS": codes.bits}
