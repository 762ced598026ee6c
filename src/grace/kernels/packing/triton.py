"""Packing as Triton kernels: a program owns bytes when it writes, and numbers when it reads."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE, launch
from grace.kernels.blocks import block_count
from grace.kernels.packing import packed_bytes, packed_trits_bytes
from grace.kernels.triton import load_digit
from grace.kernels.triton.bit_streams import load_bits, pack_byte

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@triton.jit
def _pack(values, wire, n, width, BITS: tl.constexpr, TILE: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    o = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    byte = pack_byte(values + row * n, o, n, BITS)
    tl.store(wire + row * width + o, byte, o < width)


@triton.jit
def _unpack(wire, out, row_stride, n, width, BITS: tl.constexpr, TILE: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    field = load_bits(wire + row * row_stride, i, i < n, width, BITS)
    tl.store(out + row * n + i, field.to(out.dtype.element_ty), i < n)


@triton.jit
def _pack_trits(values, wire, n, width, TILE: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    o = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    byte = tl.zeros((TILE,), tl.int32)
    for t in tl.static_range(0, 5):
        i = 5 * o + (4 - t)
        byte = byte * 3 + tl.load(values + row * n + i, i < n, 0).to(tl.int32)
    tl.store(wire + row * width + o, byte.to(tl.uint8), o < width)


@triton.jit
def _unpack_trits(wire, out, row_stride, n, TILE: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    digit, _good = load_digit(wire + row * row_stride, i, i < n)
    tl.store(out + row * n + i, digit.to(tl.uint8), i < n)


def pack(values: Tensor, bits: int) -> Any:
    values = _integers(values)
    if values is None:
        return NotImplemented
    b, n = values.shape
    out = torch.empty(b, packed_bytes(n, bits), dtype=torch.uint8, device=values.device)
    width = out.shape[1]
    launch(_pack, (block_count(width, TILE), b), values, out, n, width, BITS=bits, TILE=TILE)
    return out


def unpack(packed: Tensor, bits: int, n: int) -> Any:
    b, width = packed.shape
    if width < packed_bytes(n, bits) or packed.dtype is not torch.uint8:
        return NotImplemented
    if width > 1 and packed.stride(1) != 1:
        packed = packed.contiguous()
    out = torch.empty(b, n, dtype=torch.uint8 if bits <= 8 else torch.int64, device=packed.device)
    launch(_unpack, (block_count(n, TILE), b), packed, out, packed.stride(0), n, width, BITS=bits, TILE=TILE)
    return out


def pack_trits(trits: Tensor) -> Any:
    trits = _integers(trits)
    if trits is None:
        return NotImplemented
    b, n = trits.shape
    width = packed_trits_bytes(n)
    out = torch.empty(b, width, dtype=torch.uint8, device=trits.device)
    launch(_pack_trits, (block_count(width, TILE), b), trits, out, n, width, TILE=TILE)
    return out


def unpack_trits(packed: Tensor, n: int) -> Any:
    b, width = packed.shape
    if width < packed_trits_bytes(n) or packed.dtype is not torch.uint8:
        return NotImplemented
    if width > 1 and packed.stride(1) != 1:
        packed = packed.contiguous()
    out = torch.empty(b, n, dtype=torch.uint8, device=packed.device)
    launch(_unpack_trits, (block_count(n, TILE), b), packed, out, packed.stride(0), n, TILE=TILE)
    return out


def _integers(values: Tensor) -> Any:
    """Values as a kernel reads them; None for a type that it does not take."""
    values = values.contiguous()
    if values.dtype is torch.bool:
        return values.view(torch.uint8)
    return values if values.dtype in _INTEGERS else None
