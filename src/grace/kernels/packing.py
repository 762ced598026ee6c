"""Fields of 1 to 32 bits in a little-endian bit stream. ``reference`` has the specification, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from grace import backends, native
from grace.kernels import reference
from grace.kernels.reference import packed_bytes

_PACK = native.declare("pack", native.P, native.I, native.N, native.N, native.I, native.P, native.I)
_UNPACK = native.declare("unpack", native.P, native.N, native.N, native.N, native.I, native.P, native.I, native.I)
_SIZES = {torch.uint8: 1, torch.bool: 1, torch.int32: 4, torch.int64: 8}


def pack(values: Tensor, bits: int) -> Tensor:
    """Fields ``[b, n]`` (any integer type, 0 <= value < 2**bits, 1 <= bits <= 32) -> uint8 ``[b, ceil(n bits / 8)]``.

    Field j occupies bits [j bits, (j+1) bits) of a little-endian bit stream, zero padded to a byte.
    """
    fast = backends.function(_PACK) if values.device.type == "cpu" else None
    if fast is None:
        return reference.pack(values, bits)
    b, n = values.shape
    size = _SIZES.get(values.dtype)
    values = values.to(torch.int64).contiguous() if size is None else values.contiguous()
    out = torch.empty(b, packed_bytes(n, bits), dtype=torch.uint8)
    fast(values.data_ptr(), size or 8, b, n, bits, out.data_ptr(), native.threads())
    return out


def unpack(packed: Tensor, bits: int, n: int) -> Tensor:
    """The inverse of :func:`pack`: uint8 ``[b, ceil(n bits / 8)]`` -> ``[b, n]`` uint8 (bits <= 8) or int64."""
    b, width = packed.shape
    fast = backends.function(_UNPACK) if packed.device.type == "cpu" else None
    if fast is None or width < packed_bytes(n, bits) or packed.dtype != torch.uint8:
        return reference.unpack(packed, bits, n)
    if width > 1 and packed.stride(1) != 1:
        packed = packed.contiguous()
    out = torch.empty(b, n, dtype=torch.uint8 if bits <= 8 else torch.int64)
    fast(packed.data_ptr(), b, packed.stride(0), n, bits, out.data_ptr(), 1 if bits <= 8 else 8, native.threads())
    return out
