"""The bindings of the native kernels that look for inf and NaN."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grace.compute import native
from grace.compute.native import I, N, P
from grace.kernels import check

native.declare("finite", P, N, I)
native.declare("sum_finite", P, P, P, N, I)


def all_finite(x: Tensor) -> Any:
    if x.dtype is not torch.float32 or not x.is_contiguous():
        return NotImplemented
    n = x.numel()
    return n == 0 or bool(native.c.finite(check.numbers("x", x), n, native.threads()))


def sum_finite(x: Tensor, memory: Tensor | None, out: Tensor) -> bool:
    finite = native.c.sum_finite(
        check.numbers("x", x),
        None if memory is None else check.numbers("memory", memory, x.shape),
        check.numbers("out", out, x.shape),
        *(x.numel(), native.threads()),
    )
    return bool(finite)
