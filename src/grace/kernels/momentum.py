"""Momentum correction: velocities, what was not sent, and which velocities are forgotten.

The native kernels give the same bits as the torch functions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grace import backends, native
from grace.kernels import check

_ACCELERATE = native.declare(
    "accelerate",
    *(native.P, native.P, native.P, native.F, native.I, native.P, native.P, native.N, native.I),
)
_FORGET = native.declare("forget_sent", *[native.P] * 4, native.N, native.I)


def accelerate(x: Tensor, memory: Tensor, momentum: float, nesterov: bool, out: Tensor) -> None:
    """``memory [2, ...]``: u and v. ``out [2, ...]``: ``u' = m u + x, v' = v + u'``; nesterov: ``u' = m (u + x),
    v' = v + u' + x``. x may be of another floating type.
    """
    fast = backends.function(_ACCELERATE) if _plain(x, memory, out) else None
    if fast is not None:
        u, v = check.numbers("memory", memory, out.shape), 4 * x.numel()
        at = check.numbers("out", out)
        fast(
            check.numbers("x", x, out.shape[1:]), u, u + v, momentum, nesterov, at, at + v, x.numel(), native.threads()
        )
    elif nesterov:
        torch.add(memory[0], x, out=out[0]).mul_(momentum)
        torch.add(memory[1], out[0], out=out[1]).add_(x)
    else:
        torch.mul(memory[0], momentum, out=out[0]).add_(x)
        torch.add(memory[1], out[0], out=out[1])


def forget_sent(u: Tensor, v: Tensor, x: Tensor | None, rest: Tensor) -> None:
    """``u = 0`` where ``rest`` is not ``v + u`` (with x: ``v + u + x``). All of one shape."""
    fast = backends.function(_FORGET) if _plain(u, v, rest, *([] if x is None else [x])) else None
    if fast is not None:
        shape = u.shape
        fast(
            check.numbers("u", u),
            check.numbers("v", v, shape),
            None if x is None else check.numbers("x", x, shape),
            check.numbers("rest", rest, shape),
            *(u.numel(), native.threads()),
        )
        return
    p = v + u
    u.masked_fill_((p if x is None else p.add_(x)) != rest, 0.0)


def _plain(*tensors: Tensor) -> bool:
    """Whether native code takes them."""
    return all(t.dtype is torch.float32 and t.is_cpu and t.is_contiguous() for t in tensors)
