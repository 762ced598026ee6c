"""Stochastic rounding to a table of integers that all workers share, so that sums of entries need no decoding.

Letters: n numbers in blocks of h, each with a bound A >= 0; T the table of 2 to 16 ascending integers, the first 0, the last
g; W workers.
"""

from __future__ import annotations

from torch import Tensor

from grace.compute.dispatch import operation

__all__ = ["entry_means", "round_to_table", "sum_entries", "sum_means"]


@operation
def round_to_table(y: Tensor, bounds: Tensor, block: int, table: tuple[int, ...], u: Tensor) -> Tensor:
    """Codes z ``[1, n]`` uint8 of float32 y ``[1, n]``: T[z] is a neighbour in T of ``v = (clip(y/A, -1, 1) + 1) g/2``.

    It is the upper one, hi, where ``u (hi - lo) < v - lo``. What is within 1e-6 of an integer, relative to ``max(v, 1)``,
    counts as that integer; y/A is 0 in blocks whose A is below 2**-126. bounds are A ``[1, nb]``, u ``[1, n]`` in [0, 1).
    """


@operation
def sum_entries(codes: Tensor, table: tuple[int, ...]) -> Tensor:
    """Codes ``[W, n]`` uint8, each below the size of T -> ``[1, n]`` int32: the sums of their entries over the workers."""


@operation
def sum_means(sums: Tensor, bounds: Tensor, block: int, factor: float) -> Tensor:
    """``(s factor - 1) A`` float32 ``[1, n]`` for sums s ``[1, n]`` of integers: the bracket in float64, rounded once.

    With ``factor = 2 / (W g)`` that is the mean of the numbers of W workers whose entries add up to s.
    """


@operation
def entry_means(codes: Tensor, bounds: Tensor, block: int, table: tuple[int, ...]) -> Tensor:
    """What codes ``[1, n]`` uint8 say: :func:`sum_means` of their entries, with ``factor = 2 / g``."""
