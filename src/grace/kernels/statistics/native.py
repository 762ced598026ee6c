"""The bindings of the native kernels for statistics."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import torch
from torch import Tensor

from grace.compute import native
from grace.compute.native import I, N, P
from grace.kernels import check
from grace.kernels.blocks import block_count

native.declare("block_statistics", P, N, N, N, I, P, I)
native.declare("square_sum", P, P, N, P, I)
_MAX, _MEAN, _NORM, _SUM = range(4)


def block_abs_max(rows: Tensor, block: int) -> Any:
    return _statistic(_MAX, rows, block, torch.float32)


def block_abs_mean(rows: Tensor, block: int) -> Any:
    return _statistic(_MEAN, rows, block, torch.float32)


def block_norm(rows: Tensor, block: int) -> Any:
    return _statistic(_NORM, rows, block, torch.float32)


def block_sum(rows: Tensor, block: int) -> Any:
    return _statistic(_SUM, rows, block, torch.float64)


def _statistic(kind: int, rows: Tensor, block: int, dtype: torch.dtype) -> Any:
    if rows.dtype is not torch.float32 or rows.numel() == 0 or not rows.is_contiguous():
        return NotImplemented
    b, n = rows.shape
    out = torch.empty(b, block_count(n, block), dtype=dtype, device="cpu")
    at, into = native.address("rows", rows, torch.float32, b * n), native.address("out", out, dtype, out.numel())
    native.c.block_statistics(at, b, n, block, kind, into, native.threads())
    return out


def square_sum(row: Tensor, memory: Tensor | None = None) -> float:
    out, n = ctypes.c_double(), row.numel()
    x, e, _ = check.same_shape(row, memory, None)
    if native.c.square_sum(x, e, n, ctypes.byref(out), native.threads()):
        raise MemoryError(f"kernels: no memory to sum {n} numbers")
    return out.value


def root_mean_square(row: Tensor, memory: Tensor | None = None) -> float:
    return math.sqrt(square_sum(row, memory) / row.numel())
