"""The bindings of the native kernels that pack fields."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grace.compute import native
from grace.compute.native import I, N, P
from grace.kernels.packing import packed_bytes

native.declare("pack", P, I, N, N, I, P, I)
native.declare("unpack", P, N, N, N, I, P, I, I)
_SIZES = {torch.uint8: 1, torch.bool: 1, torch.int32: 4, torch.int64: 8}


def pack(values: Tensor, bits: int) -> Tensor:
    b, n = values.shape
    size = _SIZES.get(values.dtype)
    values = values.to(torch.int64).contiguous() if size is None else values.contiguous()
    out = torch.empty(b, packed_bytes(n, bits), dtype=torch.uint8, device="cpu")
    at, into = (
        native.address("values", values, values.dtype, b * n),
        native.address("out", out, torch.uint8, out.numel()),
    )
    native.c.pack(at, size or 8, b, n, bits, into, native.threads())
    return out


def unpack(packed: Tensor, bits: int, n: int) -> Any:
    b, width = packed.shape
    if width < packed_bytes(n, bits) or packed.dtype != torch.uint8:
        return NotImplemented
    if width > 1 and packed.stride(1) != 1:
        packed = packed.contiguous()
    out = torch.empty(b, n, dtype=torch.uint8 if bits <= 8 else torch.int64, device="cpu")
    size = 1 if bits <= 8 else 8
    at = native.address_of_rows("packed", packed, packed_bytes(n, bits))
    native.c.unpack(
        at, b, packed.stride(0), n, bits, native.address("out", out, out.dtype, b * n), size, native.threads()
    )
    return out
