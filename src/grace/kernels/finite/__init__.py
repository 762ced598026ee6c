"""True if a tensor, or a sum of two, holds an inf or NaN."""

from __future__ import annotations

from torch import Tensor

from grace.compute.dispatch import operation
from grace.flags.finite import Flag

__all__ = ["all_finite", "sum_finite"]


@operation
def all_finite(x: Tensor) -> Flag:
    """True if x, of any floating type and shape, has no inf or NaN: one pass, without a temporary of x's size."""


@operation
def sum_finite(x: Tensor, memory: Tensor | None, out: Tensor) -> Flag:
    """``out = x + memory`` (or x, where there is none), and whether all of it is finite, in one pass.

    All are float32, contiguous and of one shape; ``out`` may be x or the memory.
    """
