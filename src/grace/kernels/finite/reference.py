"""The specification of finiteness, in plain torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from grace.flags.finite import Flag, on_host


def all_finite(x: Tensor) -> Flag:
    if x.numel() == 0:
        return True
    low, high = torch.aminmax(x.detach())  # either is NaN if anything is
    if on_host(x.device):
        return math.isfinite(low.item()) and math.isfinite(high.item())
    return low.isfinite() & high.isfinite()


def sum_finite(x: Tensor, memory: Tensor | None, out: Tensor) -> Flag:
    if memory is not None:
        torch.add(x, memory, out=out)
    elif out is not x:
        out.copy_(x)
    return all_finite(out)
