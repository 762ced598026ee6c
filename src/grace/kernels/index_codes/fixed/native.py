"""The bindings of the native kernels for index lists."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grace.compute import native
from grace.compute.native import I, N, P
from grace.kernels.index_codes.fixed import check_width, layout, refuse

native.declare("encode_indices", P, N, N, N, I, I, P, N, I)
native.declare("decode_indices", P, N, N, N, N, I, I, P, I)


def encode_indices(index: Tensor, n: int, code: str) -> Any:
    if index.dtype != torch.int64:
        return NotImplemented
    b, k = index.shape
    number, low, width = layout(n, k, code)
    index = index.contiguous()
    out = torch.empty(b, width, dtype=torch.uint8, device="cpu")
    done = native.c.encode_indices(
        native.address("index", index, torch.int64, b * k), b, k, n, number, low,
        native.address("out", out, torch.uint8, b * width), width, native.threads(),
    )  # fmt: skip
    refuse(done, n, k)
    return out


def decode_indices(packed: Tensor, n: int, k: int, code: str) -> Any:
    number, low, width = check_width(packed, n, k, code)
    if packed.dtype != torch.uint8:
        return NotImplemented
    if width > 1 and packed.stride(1) != 1:
        packed = packed.contiguous()
    b = packed.shape[0]
    index = torch.empty(b, k, dtype=torch.int64, device="cpu")
    done = native.c.decode_indices(
        native.address_of_rows("packed", packed, width), b, packed.stride(0), k, n, number, low,
        native.address("index", index, torch.int64, b * k), native.threads(),
    )  # fmt: skip
    refuse(done, n, k)
    return index
