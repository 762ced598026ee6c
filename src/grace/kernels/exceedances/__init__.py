"""Statistics of the numbers that exceed a bound: how many, and the sum of their magnitudes; and how far numbers reach.

Sums are formed in float64, in the order of :mod:`grace.kernels.statistics`; what does not exceed the bound counts as 0.
"""

from __future__ import annotations

from torch import Tensor

from grace.compute.dispatch import operation
from grace.kernels.tensor_list import TensorList

__all__ = ["tail_sum", "tail_sums_many", "tops_many"]


@operation
def tail_sum(row: Tensor, bound: float) -> tuple[int, float]:
    """(how many magnitudes of ``row [n]``, float32, n >= 1, exceed the bound, rounded to float32; their sum)"""


@operation
def tail_sums_many(bounds: Tensor, many: TensorList) -> Tensor:
    """As :func:`tail_sum` of each of T tensors plus its memory, with bounds ``[T]`` float64: float64 ``[2, T]``."""


@operation
def tops_many(like: Tensor, many: TensorList) -> Tensor:
    """The largest magnitude of each of T tensors plus its memory, an inf or NaN above all others: float32 ``[T]``, on the
    device of ``like``.
    """
