"""The specification of momentum correction, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def accelerate(x: Tensor, memory: Tensor, momentum: float, nesterov: bool, out: Tensor) -> None:
    if nesterov:
        torch.add(memory[0], x, out=out[0]).mul_(momentum)
        torch.add(memory[1], out[0], out=out[1]).add_(x)
    else:
        torch.mul(memory[0], momentum, out=out[0]).add_(x)
        torch.add(memory[1], out[0], out=out[1])


def forget_sent(u: Tensor, v: Tensor, x: Tensor | None, rest: Tensor) -> None:
    p = v + u
    u.masked_fill_((p if x is None else p.add_(x)) != rest, 0.0)
