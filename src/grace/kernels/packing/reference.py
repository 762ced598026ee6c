"""The specification of packing, in plain torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from grace.kernels.blocks import pad
from grace.kernels.packing import TRITS_PER_BYTE, packed_bytes, packed_trits_bytes

_WORD_BITS = (1, 2, 4, 8)


def pack(values: Tensor, bits: int) -> Tensor:
    rows, n = values.shape
    if bits in _WORD_BITS:
        per = 8 // bits
        fields = pad(values.to(torch.uint8), math.ceil(n / per) * per).view(rows, -1, per)
        out = fields[:, :, 0].clone()
        for j in range(1, per):
            out |= fields[:, :, j] << (j * bits)
        return out
    # eight fields fill exactly `bits` bytes: [b, g, 8] fields -> [b, g, bits] bytes
    groups = math.ceil(n / 8)
    wide = pad(values.to(torch.int64), groups * 8).view(rows, groups, 8)
    out = torch.zeros(rows, groups, bits, dtype=torch.int64, device=values.device)
    for j in range(8):
        first = j * bits // 8
        shifted = wide[:, :, j] << (j * bits % 8)
        for byte in range(first, ((j + 1) * bits - 1) // 8 + 1):
            out[:, :, byte] |= (shifted >> (8 * (byte - first))) & 0xFF
    return out.to(torch.uint8).view(rows, -1)[:, : packed_bytes(n, bits)]


def unpack(packed: Tensor, bits: int, n: int) -> Tensor:
    rows = packed.shape[0]
    if bits in _WORD_BITS:
        per = 8 // bits
        mask = (1 << bits) - 1
        parts = [(packed >> (j * bits)) & mask for j in range(per)]
        return torch.stack(parts, dim=2).view(rows, -1)[:, :n]
    groups = math.ceil(n / 8)
    wide = pad(packed, groups * bits).view(rows, groups, bits).to(torch.int64)
    out = torch.empty(rows, groups, 8, dtype=torch.int64, device=packed.device)
    for j in range(8):
        first = j * bits // 8
        field = torch.zeros(rows, groups, dtype=torch.int64, device=packed.device)
        for byte in range(first, ((j + 1) * bits - 1) // 8 + 1):
            field |= wide[:, :, byte] << (8 * (byte - first))
        out[:, :, j] = (field >> (j * bits % 8)) & ((1 << bits) - 1)
    return (out.to(torch.uint8) if bits < 8 else out).view(rows, -1)[:, :n]


def pack_trits(trits: Tensor) -> Tensor:
    rows, n = trits.shape
    digits = pad(trits.to(torch.uint8), packed_trits_bytes(n) * TRITS_PER_BYTE).view(rows, -1, TRITS_PER_BYTE)
    out = digits[:, :, 4].clone()
    for j in (3, 2, 1, 0):
        out.mul_(3).add_(digits[:, :, j])
    return out


def unpack_trits(packed: Tensor, n: int) -> Tensor:
    powers = torch.pow(3, torch.arange(TRITS_PER_BYTE, dtype=packed.dtype, device=packed.device))
    return (packed[:, :, None] // powers).remainder_(3).view(packed.shape[0], -1)[:, :n]
