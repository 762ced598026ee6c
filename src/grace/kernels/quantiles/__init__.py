"""Buckets between quantiles. Letters: b rows of n numbers; q buckets, of which z hold negative ones."""

from __future__ import annotations

from torch import Tensor

from grace.compute.dispatch import operation

__all__ = ["quantile_buckets"]


@operation
def quantile_buckets(rows: Tensor, seen: Tensor, q: int, zero_edge: bool) -> tuple[Tensor, Tensor, Tensor]:
    """``[b, n]``, n >= 1 -> the buckets' means ``[b, q]`` (0 of an empty one), each number's bucket ``[b, n]``, z ``[b]``.

    Edge j = 1 ... q-1 is the number at place floor(j m / q) of ``seen [b, m]``, sorted: the row itself, or a sample of
    it. A number's bucket is how many edges are <= it. With ``zero_edge``, the edge nearest to zero is moved to zero in
    rows with negative and other numbers, so that no bucket mixes signs. Means are taken in float64, over the whole row.
    """
