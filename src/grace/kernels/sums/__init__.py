"""Sums with a factor, with the same bits on every processor."""

from __future__ import annotations

from torch import Tensor

from grace.compute.dispatch import operation

__all__ = ["add_scaled_"]


@operation
def add_scaled_(out: Tensor, x: Tensor, scale: float) -> Tensor:
    """``out += scale x``, of one shape; the product is rounded to out's type before the sum. x may be of a narrower floating
    type. Returns ``out``.
    """
