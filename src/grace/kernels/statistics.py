"""One number for each block of each row; ``reference`` specifies them, and the native kernels agree to the bit.

Letters: b rows of n numbers; blocks of B numbers, nb = ceil(n/B) of them per row, the last one shorter.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grace import backends, native
from grace.kernels import reference

_STATISTICS = native.declare("block_statistics", native.P, native.N, native.N, native.N, native.I, native.P, native.I)
_MAX, _MEAN, _NORM, _SUM = range(4)


def block_abs_max(rows: Tensor, block: int) -> Tensor:
    """``[b, n]`` -> ``[b, nb]``: the largest magnitude of each block; NaN if it holds one."""
    out = _fast(_MAX, rows, block, torch.float32)
    return reference.block_abs_max(rows, block) if out is None else out


def block_abs_mean(rows: Tensor, block: int) -> Tensor:
    """``[b, n]`` -> float32 ``[b, nb]``: the mean magnitude of each block, accumulated in float64."""
    out = _fast(_MEAN, rows, block, torch.float32)
    return reference.block_abs_mean(rows, block) if out is None else out


def block_norm(rows: Tensor, block: int) -> Tensor:
    """``[b, n]`` -> float32 ``[b, nb]``: the Euclidean norm of each block, without overflow or underflow on the way."""
    out = _fast(_NORM, rows, block, torch.float32)
    return reference.block_norm(rows, block) if out is None else out


def block_sum(rows: Tensor, block: int) -> Tensor:
    """``[b, n]`` (any dtype) -> float64 ``[b, nb]``: the sum of each block."""
    out = _fast(_SUM, rows, block, torch.float64)
    return reference.block_sum(rows, block) if out is None else out


def _fast(kind: int, rows: Tensor, block: int, dtype: torch.dtype) -> Tensor | None:
    """From the native kernel; None where the reference is to be used."""
    if rows.dtype is not torch.float32 or rows.device.type != "cpu" or rows.numel() == 0 or not rows.is_contiguous():
        return None
    fast = backends.function(_STATISTICS)
    if fast is None:
        return None
    b, n = rows.shape
    out = torch.empty(b, reference.block_count(n, block), dtype=dtype)
    fast(rows.data_ptr(), b, n, block, kind, out.data_ptr(), native.threads())
    return out
