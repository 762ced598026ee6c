"""The root of the sum of two squares, with the same bits on every processor."""

from __future__ import annotations

import torch
from torch import Tensor


def hypotenuse(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """``sqrt(a^2 + b^2)`` of tensors of one shape and dtype, in ``out``, which may be ``a``, or in a new tensor.

    Numbers of float32 are squared, added and rooted in float64, where nothing overflows or vanishes and each operation is
    rounded once, as IEEE 754 has it: ``torch.hypot``, which float64 gets, has other last bits on a GPU than on a CPU.
    """
    if a.dtype != torch.float32:
        return torch.hypot(a, b, out=out)
    squares = a.double().square_().add_(b.double().square_()).sqrt_()
    return squares.float() if out is None else out.copy_(squares)
