"""The specification of momentum correction, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.kernels.tensor_list import TensorList


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


def accelerate_many(like: Tensor, many: TensorList, rooms: TensorList, momentum: float, *, nesterov: bool) -> None:
    assert many.memories is not None
    assert many.rests is not None
    for t, (x, (u, v), (after, _)) in enumerate(zip(many.xs, many.memories, many.rests, strict=True)):
        if nesterov:
            assert rooms.memories is not None
            torch.add(u, x[0], out=after).mul_(momentum)
            torch.add(v, after, out=rooms.memories[t][0])
            rooms.xs[t].copy_(x)
        else:
            torch.mul(u, momentum, out=after).add_(x[0])
            rooms.xs[t][0] = after


def forget_many(masked: Tensor, many: TensorList, *, nesterov: bool) -> None:
    assert many.memories is not None
    assert many.rests is not None
    marks = zip(masked.unbind(), many.xs, many.memories, many.rests, strict=True)
    for mark, x, (_, v), (u, rest) in marks:
        p = v + u
        sent = (p.add_(x[0]) if nesterov else p) != rest
        u.masked_fill_(sent & (mark != 0), 0.0)
