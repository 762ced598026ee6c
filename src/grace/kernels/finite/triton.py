"""Finiteness as Triton kernels."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE, Marks, check_rows, launch
from grace.flags.finite import Flag
from grace.kernels.blocks import block_count
from grace.kernels.triton import load_sum, magnitude, mark_if

_EXPONENTS = {torch.float32: 0x7F800000, torch.bfloat16: 0x7F80, torch.float16: 0x7C00}
_WORDS = {4: torch.int32, 2: torch.int16}


@triton.jit
def _look(words, bad, n, EXPONENT: tl.constexpr, TILE: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    word = tl.load(words + i, i < n, 0).to(tl.int32)
    mark_if(bad, (word & EXPONENT) == EXPONENT)


@triton.jit
def _add(x, e, out, bad, n, HAS_MEMORY: tl.constexpr, TILE: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    p = load_sum(x, e, i, i < n, HAS_MEMORY)
    mark_if(bad, magnitude(p) >= 0x7F800000)
    tl.store(out + i, p, i < n)


def all_finite(x: Tensor) -> Any:
    if x.dtype not in _EXPONENTS or not x.is_contiguous():
        return NotImplemented
    bad, n = Marks(x), x.numel()
    words = x.detach().view(_WORDS[x.dtype.itemsize])
    launch(_look, (block_count(n, 4 * TILE),), words, bad.clean, n, EXPONENT=_EXPONENTS[x.dtype], TILE=4 * TILE)
    return bad.unset()


def sum_finite(x: Tensor, memory: Tensor | None, out: Tensor) -> Flag:
    check_rows(rows=x, memory=memory, out=out)
    bad, n = Marks(x), x.numel()
    launch(_add, (block_count(n, TILE),), x, memory, out, bad.clean, n, HAS_MEMORY=memory is not None, TILE=TILE)
    return bad.unset()
