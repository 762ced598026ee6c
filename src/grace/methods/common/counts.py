"""How many of n numbers a ratio keeps."""

from __future__ import annotations

import math


def count_kept(ratio: float, n: int) -> int:
    """How many of n numbers a ratio keeps: ``max(1, ceil(ratio n))``; rounding errors of the ratio do not count."""
    return max(1, min(n, math.ceil(ratio * n - 1e-9 * n)))
