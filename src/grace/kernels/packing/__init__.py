"""Fields of 1 to 32 bits in a little-endian bit stream, and digits in base 3, five to a byte."""

from __future__ import annotations

import math

from torch import Tensor

from grace.compute.dispatch import operation

__all__ = ["pack", "pack_trits", "packed_bytes", "packed_trits_bytes", "unpack", "unpack_trits"]

TRITS_PER_BYTE = 5  # 3**5 = 243 <= 256: 1.6 bits each


def packed_bytes(count: int, bits: int) -> int:
    """Bytes of ``count`` fields of ``bits`` bits."""
    return math.ceil(count * bits / 8)


def packed_trits_bytes(count: int) -> int:
    """Bytes of ``count`` base-3 digits, five to a byte."""
    return math.ceil(count / TRITS_PER_BYTE)


@operation
def pack(values: Tensor, bits: int) -> Tensor:
    """Fields ``[b, n]`` (any integer type, 0 <= value < 2**bits, 1 <= bits <= 32) -> uint8 ``[b, ceil(n bits / 8)]``.

    Field j occupies bits [j bits, (j+1) bits) of a little-endian bit stream, zero padded to a byte.
    """


@operation
def unpack(packed: Tensor, bits: int, n: int) -> Tensor:
    """The inverse of :func:`pack`: uint8 ``[b, ceil(n bits / 8)]`` -> ``[b, n]`` uint8 (bits <= 8) or int64."""


@operation
def pack_trits(trits: Tensor) -> Tensor:
    """Digits ``[b, n]`` in {0, 1, 2} -> uint8 ``[b, ceil(n/5)]``: each byte is d0 + 3 d1 + 9 d2 + 27 d3 + 81 d4."""


@operation
def unpack_trits(packed: Tensor, n: int) -> Tensor:
    """The inverse of :func:`pack_trits`: ``[b, n]`` uint8 in {0, 1, 2}. A byte above 242 is the caller's to refuse."""
