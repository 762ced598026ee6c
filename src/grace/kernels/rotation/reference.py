"""The specification of the transforms, in plain torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from grace.flags.finite import on_host

_SHORTEST = 16  # what is left of a row after its last block is transformed in pieces down to this size
_LARGE = 2.0**96  # beyond this, sums of a block are formed at 2**-32 of their size
_SHRINK = 2.0**-32


def hadamard(rows: Tensor, block: int) -> Tensor:
    if not on_host(rows.device):
        return _hadamard_either(rows, block)
    if float(rows.abs().amax()) > _LARGE:
        most = torch.finfo(torch.float32).max * _SHRINK
        return _blocks(rows * _SHRINK, block).clamp_(-most, most).mul_(1 / _SHRINK)
    return _blocks(rows, block)


def _hadamard_either(rows: Tensor, block: int) -> Tensor:
    """The same without asking the host whether numbers are large."""
    large = rows.abs().amax() > _LARGE
    shrink = torch.where(large, _SHRINK, 1.0)
    most = torch.where(large, torch.finfo(torch.float32).max * _SHRINK, math.inf)
    return _blocks(rows * shrink, block).clamp_(-most, most).mul_(1 / shrink)


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
