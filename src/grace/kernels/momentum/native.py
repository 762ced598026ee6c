"""The bindings of the native kernels for momentum correction."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grace.compute import native
from grace.compute.native import F, I, N, P
from grace.kernels import check

native.declare("accelerate", P, P, P, F, I, P, P, N, I)
native.declare("forget_sent", P, P, P, P, N, I)


def accelerate(x: Tensor, memory: Tensor, momentum: float, nesterov: bool, out: Tensor) -> Any:
    if not _plain(x, memory, out):
        return NotImplemented
    n, both = x.numel(), (2, *x.shape)
    u, at, x_at = check.numbers("memory", memory, both), check.numbers("out", out, both), check.numbers("x", x)
    v = u + 4 * n
    return native.c.accelerate(x_at, u, v, momentum, nesterov, at, at + 4 * n, n, native.threads())


def forget_sent(u: Tensor, v: Tensor, x: Tensor | None, rest: Tensor) -> Any:
    if not _plain(u, v, rest, *([] if x is None else [x])):
        return NotImplemented
    shape = u.shape
    return native.c.forget_sent(
        check.numbers("u", u),
        check.numbers("v", v, shape),
        None if x is None else check.numbers("x", x, shape),
        check.numbers("rest", rest, shape),
        *(u.numel(), native.threads()),
    )


def _plain(*tensors: Tensor) -> bool:
    """True if native code takes them."""
    return all(t.dtype is torch.float32 and t.is_cpu and t.is_contiguous() for t in tensors)
