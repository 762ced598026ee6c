"""The coarse operations that methods call, in plain torch: the specification that faster versions must agree with.

Letters: b rows of n numbers; blocks of B numbers, nb = ceil(n/B) of them per row, the last one shorter.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_TRITS_PER_BYTE = 5  # 3**5 = 243 <= 256: 1.6 bits each
_WORD_BITS = (1, 2, 4, 8)
_PIECE, _LANES = 4096, 16  # of ordered sums


# ---- bits -----------------------------------------------------------------------------------------------------------
def packed_bytes(count: int, bits: int) -> int:
    """Bytes of ``count`` fields of ``bits`` bits."""
    return math.ceil(count * bits / 8)


def pack(values: Tensor, bits: int) -> Tensor:
    """Fields ``[b, n]`` (any integer type, 0 <= value < 2**bits, 1 <= bits <= 32) -> uint8 ``[b, ceil(n bits / 8)]``.

    Field j occupies bits [j bits, (j+1) bits) of a little-endian bit stream, zero padded to a byte.
    """
    rows, n = values.shape
    if bits in _WORD_BITS:
        per = 8 // bits
        fields = _padded(values.to(torch.uint8), math.ceil(n / per) * per).view(rows, -1, per)
        out = fields[:, :, 0].clone()
        for j in range(1, per):
            out |= fields[:, :, j] << (j * bits)
        return out
    # eight fields fill exactly `bits` bytes: [b, g, 8] fields -> [b, g, bits] bytes
    groups = math.ceil(n / 8)
    wide = _padded(values.to(torch.int64), groups * 8).view(rows, groups, 8)
    out = torch.zeros(rows, groups, bits, dtype=torch.int64, device=values.device)
    for j in range(8):
        first = j * bits // 8
        shifted = wide[:, :, j] << (j * bits % 8)
        for byte in range(first, ((j + 1) * bits - 1) // 8 + 1):
            out[:, :, byte] |= (shifted >> (8 * (byte - first))) & 0xFF
    return out.to(torch.uint8).view(rows, -1)[:, : packed_bytes(n, bits)]


def unpack(packed: Tensor, bits: int, n: int) -> Tensor:
    """The inverse of :func:`pack`: uint8 ``[b, ceil(n bits / 8)]`` -> ``[b, n]`` uint8 (bits <= 8) or int64."""
    rows = packed.shape[0]
    if bits in _WORD_BITS:
        per = 8 // bits
        mask = (1 << bits) - 1
        parts = [(packed >> (j * bits)) & mask for j in range(per)]
        return torch.stack(parts, dim=2).view(rows, -1)[:, :n]
    groups = math.ceil(n / 8)
    wide = _padded(packed, groups * bits).view(rows, groups, bits).to(torch.int64)
    out = torch.empty(rows, groups, 8, dtype=torch.int64, device=packed.device)
    for j in range(8):
        first = j * bits // 8
        field = torch.zeros(rows, groups, dtype=torch.int64, device=packed.device)
        for byte in range(first, ((j + 1) * bits - 1) // 8 + 1):
            field |= wide[:, :, byte] << (8 * (byte - first))
        out[:, :, j] = (field >> (j * bits % 8)) & ((1 << bits) - 1)
    return (out.to(torch.uint8) if bits < 8 else out).view(rows, -1)[:, :n]


def packed_trits_bytes(count: int) -> int:
    """Bytes of ``count`` base-3 digits, five to a byte."""
    return math.ceil(count / _TRITS_PER_BYTE)


def pack_trits(trits: Tensor) -> Tensor:
    """Digits ``[b, n]`` in {0, 1, 2} -> uint8 ``[b, ceil(n/5)]``: each byte is d0 + 3 d1 + 9 d2 + 27 d3 + 81 d4."""
    rows, n = trits.shape
    digits = _padded(trits.to(torch.uint8), packed_trits_bytes(n) * _TRITS_PER_BYTE).view(rows, -1, _TRITS_PER_BYTE)
    out = digits[:, :, 4].clone()
    for j in (3, 2, 1, 0):
        out.mul_(3).add_(digits[:, :, j])
    return out


def unpack_trits(packed: Tensor, n: int) -> Tensor:
    """The inverse of :func:`pack_trits`: ``[b, n]`` uint8 in {0, 1, 2}. A byte above 242 is the caller's to refuse."""
    powers = packed.new_tensor([1, 3, 9, 27, 81])
    return (packed[:, :, None] // powers).remainder_(3).view(packed.shape[0], -1)[:, :n]


def _padded(rows: Tensor, n: int) -> Tensor:
    """``rows [b, <= n]`` with zeros up to n columns, contiguous."""
    if rows.shape[1] == n:
        return rows.contiguous()
    out = rows.new_zeros(rows.shape[0], n)
    out[:, : rows.shape[1]] = rows
    return out


# ---- blocks ---------------------------------------------------------------------------------------------------------
def block_count(n: int, block: int) -> int:
    """How many blocks cover n numbers."""
    return math.ceil(n / block)


def block_sizes(n: int, block: int, like: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """``[nb]``: the sizes of the blocks of n numbers."""
    sizes = torch.full((block_count(n, block),), float(block), dtype=dtype, device=like.device)
    if n % block:
        sizes[-1] = n % block
    return sizes


def block_abs_max(rows: Tensor, block: int) -> Tensor:
    """``[b, n]`` -> ``[b, nb]``: the largest magnitude of each block."""
    return _over_blocks(rows.abs(), _clipped(rows, block)).amax(dim=2)


def block_abs_mean(rows: Tensor, block: int) -> Tensor:
    """``[b, n]`` -> ``[b, nb]``: the mean magnitude of each block, accumulated in float64 (:func:`ordered_sum`)."""
    sizes = block_sizes(rows.shape[1], block, rows, torch.float64)
    return (ordered_sum(rows.abs().double(), block) / sizes).float()


def block_norm(rows: Tensor, block: int) -> Tensor:
    """``[b, n]`` -> ``[b, nb]``: the Euclidean norm of each block, without overflow or underflow on the way."""
    squares = ordered_sum(rows.double().square_(), block)
    return squares.sqrt_().clamp_max_(torch.finfo(torch.float32).max).float()


def block_sum(rows: Tensor, block: int) -> Tensor:
    """``[b, n]`` (any dtype) -> float64 ``[b, nb]``: the sum of each block (:func:`ordered_sum`)."""
    return ordered_sum(rows.double(), block)


def ordered_sum(values: Tensor, block: int) -> Tensor:
    """float64 ``[b, n]`` -> ``[b, nb]``: the sum of each block, always in the same order.

    Number i of a piece of 4,096 goes to lane i mod 16; each lane adds in order; then the upper half of the lanes is added to
    the lower, four times; then the pieces of a block are added in order.
    """
    block = _clipped(values, block)
    parts = _over_blocks(_over_blocks(values, block).flatten(0, 1), min(block, _PIECE))  # [b nb, pieces, B]
    lanes = _over_blocks(parts.flatten(0, 1), _LANES)  # [b nb pieces, T, 16]
    total = lanes[:, 0].clone()
    for t in range(1, lanes.shape[1]):
        total += lanes[:, t]
    for half in (8, 4, 2, 1):
        total = total[:, :half] + total[:, half : 2 * half]
    return total.view(parts.shape[:2]).cumsum(dim=1)[:, -1].view(values.shape[0], -1)


def spread(scales: Tensor, n: int, block: int) -> Tensor:
    """``[b, nb]`` -> ``[b, n]``: each block's number at each of its positions."""
    return scales.repeat_interleave(max(1, min(block, n)), dim=1)[:, :n]


def _clipped(rows: Tensor, block: int) -> int:
    """The block that makes the same blocks of these rows ``[b, n]``, without padding beyond a row's end."""
    return max(1, min(block, rows.shape[1]))


def _over_blocks(rows: Tensor, block: int) -> Tensor:
    """``[b, n]`` -> ``[b, nb, B]``, zeros behind the end (neutral for magnitudes and sums)."""
    b, n = rows.shape
    count = block_count(n, block)
    return _padded(rows, count * block).view(b, count, block)


# ---- quantizing -----------------------------------------------------------------------------------------------------
def stochastic_round(y: Tensor, u: Tensor) -> Tensor:
    """floor(y) + [u < y - floor(y)] for y >= 0; a y within 1e-6 max(1, y) of an integer never moves."""
    near = y.round()
    low = y.floor()
    up = (u < y - low).to(y.dtype)
    return torch.where((y - near).abs() <= 1e-6 * y.clamp_min(1.0), near, low + up)
