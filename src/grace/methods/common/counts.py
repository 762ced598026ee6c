"""How many of n numbers a ratio keeps, and how much of them arrives."""

from __future__ import annotations

import math

_CONTRACTION = {"float32": 1.0, "bfloat16": 1 - 2.0**-18}  # 8 significant bits: an error of 2**-9 at most


def count_kept(ratio: float, n: int) -> int:
    """How many of n numbers a ratio keeps: ``max(1, ceil(ratio n))``; rounding errors of the ratio do not count."""
    return max(1, min(n, math.ceil(ratio * n - 1e-9 * n)))


def contraction(kept: float, values: str) -> float:
    """The delta of a method that sends the share ``kept`` of the squared norm, in values of that type."""
    return kept * _CONTRACTION[values]
