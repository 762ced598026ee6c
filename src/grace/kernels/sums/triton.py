"""Sums with a factor as a Triton kernel."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE, launch
from grace.kernels.blocks import block_count


@triton.jit(do_not_specialize=["scale"])
def _add_scaled(out, x, scale, n, BFLOAT16: tl.constexpr, TILE: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = i < n
    if BFLOAT16:  # its bits: the interpreter's bfloat16 does arithmetic on them
        value = ((tl.load(x + i, inside, 0).to(tl.int32) & 0xFFFF) << 16).to(tl.float32, bitcast=True)
    else:
        value = tl.load(x + i, inside, 0.0).to(tl.float32)
    tl.store(out + i, tl.load(out + i, inside, 0.0) + value * scale, inside)


def add_scaled_(out: Tensor, x: Tensor, scale: float) -> Any:
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16) or out.dtype is not torch.float32:
        return NotImplemented
    if out.shape != x.shape or not (out.is_contiguous() and x.is_contiguous()):
        return NotImplemented
    n, narrow = out.numel(), x.dtype is torch.bfloat16
    words = x.view(torch.int16) if narrow else x
    launch(_add_scaled, (block_count(n, TILE),), out, words, scale, n, BFLOAT16=narrow, TILE=TILE)
    return out
