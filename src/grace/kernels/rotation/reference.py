"""The specification of the transforms, in plain torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from grace.kernels.blocks import spread
from grace.kernels.statistics import block_abs_max

_SHORTEST = 16  # what is left of a row after its last block is transformed in pieces down to this size
_LARGE = 2.0**96  # a block with a number beyond this is transformed at 2**-32 of its size
_SHRINK = 2.0**-32


def hadamard(rows: Tensor, block: int) -> Tensor:
    large = block_abs_max(rows, block) > _LARGE
    shrink = spread(torch.where(large, _SHRINK, 1.0), rows.shape[1], block)
    most = spread(torch.where(large, torch.finfo(torch.float32).max * _SHRINK, math.inf), rows.shape[1], block)
    return _blocks(rows * shrink, block).clamp_(-most, most).div_(shrink)


def _blocks(rows: Tensor, block: int) -> Tensor:
    """The transform, piece by piece."""
    out = rows.clone()
    n, at, h = rows.shape[1], 0, block
    while at < n:
        while h > n - at:
            h //= 2
        if h < min(_SHORTEST, block):
            break
        end = at + (n - at) // h * h
        out[:, at:end] = _transform(rows[:, at:end].reshape(-1, h)).view(rows.shape[0], -1)
        at = end
    return out


def _transform(x: Tensor) -> Tensor:
    """``[m, h]``, contiguous -> ``[m, h]``."""
    m, h = x.shape
    s = 1
    while s < h:
        p, q = x.view(m, h // (2 * s), 2, s).unbind(dim=2)
        x = torch.stack((p + q, p - q), dim=2)
        s *= 2
    return x.view(m, h) * (1 / math.sqrt(h))
