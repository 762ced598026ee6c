"""The unit 1/lambda: numbers of magnitude a are kept with the probability ``min(a / unit, 1)``.

Sums are formed in float64, in the order of :mod:`grace.kernels.statistics`; what does not count is 0 there. Magnitudes are
compared with the unit as float32. So the unit has the same bits on all machines and devices.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from grace.kernels.statistics import block_sum, square_sum


def unit_of_count(a: Tensor, count: float, rounds: int) -> float:
    """1/lambda such that ``sum min(lambda a, 1)``, for magnitudes ``a [n]``, comes near to count from below."""
    unit = sum_of(a) / count
    for _ in range(rounds):
        kept, below = _below(a, unit)
        missing = count - a.numel() + below  # what the numbers with p = 1 leave of the count
        total = sum_of(kept)
        if missing <= 0 or total == 0 or total / missing >= unit:
            break
        unit = total / missing
    return unit


def unit_of_variance(a: Tensor, epsilon: float) -> float:
    """1/lambda such that a sample of magnitudes ``a [n]`` has variance ``epsilon sum a^2``, with the fewest numbers.

    The variance is ``sum of a (unit - a)`` of those below the unit: it grows with the unit, and its slope does. So Newton's
    method comes from above, and ends.
    """
    total, squares = sum_of(a), square_sum(a)
    spread = epsilon * squares
    unit = (spread + squares) / total
    while True:
        kept, _ = _below(a, unit)
        total, squares = sum_of(kept), square_sum(kept)
        if total == 0 or (spread + squares) / total >= unit:
            return unit
        unit = (spread + squares) / total


def sum_of(values: Tensor) -> float:
    """The sum of ``values [n]``."""
    return float(block_sum(values[None], values.numel()))


def _below(a: Tensor, unit: float) -> tuple[Tensor, int]:
    """(the magnitudes ``[n]`` that are below the unit, 0 in place of others; how many they are)"""
    limit = a.new_tensor(unit) if unit <= torch.finfo(torch.float32).max else a.new_tensor(math.inf)
    above = a >= limit
    return a.masked_fill(above, 0.0), a.numel() - int(above.count_nonzero())
