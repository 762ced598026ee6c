"""Parts of parameters that a rank has, and arithmetic on them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from grace.adapters.trained import is_split
from grace.kernels.finite import all_finite


def local(x: Tensor) -> Tensor:
    """The part of a DTensor that this rank has, in the same storage; another tensor, of any shape, as it is."""
    return x.to_local() if is_split(x) else x.detach()


def zeros(p: Tensor) -> Tensor:
    """Zeros like a parameter of any shape, at least float32; of a DTensor, one."""
    return torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32), requires_grad=False)


def divide(x: Tensor, v: Tensor, eps: float) -> Tensor:
    """``x / (sqrt v + eps)``, of any shape; 0 where x and v are, also without eps."""
    root = v.sqrt()
    if eps == 0:
        root.masked_fill_(v == 0, 1.0)
    return x / root.add_(eps)


def nonfinite(means: Mapping[str, Tensor]) -> list[str]:
    """Names of those means, of any shapes, that have an inf or NaN. The host waits for an accelerator once."""
    flags = {name: all_finite(mean) for name, mean in means.items()}
    waiting = [flag for flag in flags.values() if isinstance(flag, Tensor)]
    known = iter(torch.stack(waiting).tolist() if waiting else ())
    return [name for name, flag in flags.items() if not (next(known) if isinstance(flag, Tensor) else flag)]
