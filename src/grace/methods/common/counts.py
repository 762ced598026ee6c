"""Counts of the numbers that a ratio keeps, of n, and the share of them that arrives."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

_CONTRACTION = {"float32": 1.0, "bfloat16": 1 - 2.0**-18}  # 8 significant bits: an error of 2**-9 at most


def count_kept(ratio: float, n: int) -> int:
    """Count of the numbers that a ratio keeps, of n: ``max(1, ceil(ratio n))``; rounding errors of the ratio do not count."""
    return max(1, min(n, math.ceil(ratio * n - 1e-9 * n)))


@dataclass(frozen=True)
class KeptOfEach:
    """As :func:`count_kept`, of numbers that a tensor says."""

    ratio: float

    def __call__(self, counts: Tensor) -> Tensor:
        """Kept numbers of ``counts``, int64 of any shape; none of a count of 0."""
        exact = counts.double()
        return (exact * self.ratio - exact * 1e-9).ceil().long().clamp_min(1).minimum(counts)


def contraction(kept: float, values: str) -> float:
    """The delta of a method that sends the share ``kept`` of the squared norm, in values of that type."""
    return kept * _CONTRACTION[values]
