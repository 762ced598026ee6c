"""Momentum correction as Triton kernels."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE, check_rows, launch
from grace.kernels.blocks import block_count


@triton.jit(do_not_specialize=["momentum"])
def _accelerate(x, memory, out, n, momentum, NESTEROV: tl.constexpr, TILE: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = i < n
    g = tl.load(x + i, inside, 0.0)
    u = tl.load(memory + i, inside, 0.0)
    v = tl.load(memory + n + i, inside, 0.0)
    if NESTEROV:
        u = (u + g) * momentum
        v = v + u + g
    else:
        u = u * momentum + g
        v = v + u
    tl.store(out + i, u, inside)
    tl.store(out + n + i, v, inside)


@triton.jit
def _forget(u, v, x, rest, n, HAS_X: tl.constexpr, TILE: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = i < n
    velocity = tl.load(u + i, inside, 0.0)
    p = tl.load(v + i, inside, 0.0) + velocity
    if HAS_X:
        p = p + tl.load(x + i, inside, 0.0)
    tl.store(u + i, tl.where(p != tl.load(rest + i, inside, 0.0), 0.0, velocity), inside)


def accelerate(x: Tensor, memory: Tensor, momentum: float, nesterov: bool, out: Tensor) -> Any:
    if not _plain(x, memory, out):
        return NotImplemented
    check_rows(memory=memory, out=out)
    n = x.numel()
    launch(_accelerate, (block_count(n, TILE),), x, memory, out, n, momentum, NESTEROV=nesterov, TILE=TILE)
    return None


def forget_sent(u: Tensor, v: Tensor, x: Tensor | None, rest: Tensor) -> Any:
    if not _plain(u, v, rest, *([] if x is None else [x])):
        return NotImplemented
    check_rows(u=u, v=v, x=x, rest=rest)
    n = u.numel()
    launch(_forget, (block_count(n, TILE),), u, v, x, rest, n, HAS_X=x is not None, TILE=TILE)
    return None


def _plain(*tensors: Tensor) -> bool:
    """Whether the kernels take them."""
    return all(t.dtype is torch.float32 and t.is_contiguous() for t in tensors)
