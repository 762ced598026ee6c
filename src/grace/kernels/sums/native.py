"""The bindings of the native kernels for sums with a factor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grace.compute import native
from grace.compute.native import F, I, N, P

native.declare("add_scaled", P, P, I, F, N, I)
_KINDS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


def add_scaled_(out: Tensor, x: Tensor, scale: float) -> Any:
    kind = _KINDS.get(x.dtype)
    if kind is None or out.dtype is not torch.float32 or out.shape != x.shape:
        return NotImplemented
    if not (out.is_contiguous() and x.is_contiguous()):
        return NotImplemented
    n = out.numel()
    given = native.address("out", out, torch.float32, n), native.address("x", x, x.dtype, n)
    native.c.add_scaled(*given, kind, scale, n, native.threads())
    return out
