"""Whether a tensor holds an inf or NaN."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from grace.kernels import native

_FINITE = native.declare("finite", native.P, native.N, native.I)


def all_finite(x: Tensor) -> bool:
    """Whether there is no inf or NaN in x, of any floating type and shape: one pass, without a temporary of x's size."""
    if x.numel() == 0:
        return True
    if x.dtype is torch.float32 and x.device.type == "cpu" and x.is_contiguous():
        fast = native.function(_FINITE)
        if fast is not None:
            return bool(fast(x.data_ptr(), x.numel(), native.threads()))
    low, high = torch.aminmax(x.detach())  # either is NaN if anything is
    return math.isfinite(low.item()) and math.isfinite(high.item())
