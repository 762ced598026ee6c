"""Stochastic rounding to a table of integers whose sums need no decoding: thc.

Letters: T the table of 2**bits integers from 0 to g; W workers; A the largest number of a block that is sent unclipped.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grace.kernels import MOST, block_roots, entry_means, round_to_table, sum_means
from grace.random import Stream

# bits: the table that minimizes the variance for clip = 1/32
_TABLES = {
    3: (0, 3, 5, 7, 9, 11, 13, 16),
    4: (0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30),
}


def choose_table(bits: int, uniform: bool) -> tuple[int, ...]:
    """T, ascending: the table for Gaussian numbers (3 or 4 bits), or 0, 1, ..., 2**bits - 1."""
    return tuple(range(1 << bits)) if uniform else _TABLES[bits]


@dataclass(frozen=True, slots=True)
class TableScale:
    """Numbers in [-A, A] on the scale [0, g] of a table, and back. bounds: A ``[1, nb]``, of each block of ``block``."""

    bounds: Tensor
    g: int
    block: int

    @classmethod
    def from_norms(cls, norm: Tensor, n: int, reach: float, g: int, block: int) -> TableScale:
        """A is ``reach`` times the root mean square, from the norms ``[1, nb]``; 0 for blocks that are practically zero."""
        rms = norm / block_roots(n, block, norm)
        rms = torch.where(rms < torch.finfo(torch.float32).tiny, 0.0, rms)
        return cls((rms.double() * reach).clamp_max_(MOST).float(), g, block)

    def codes(self, y: Tensor, table: tuple[int, ...], rng: Stream) -> Tensor:
        """Z ``[1, n]`` uint8 of numbers y ``[1, n]``, clipped to [-A, A]: each rounded up or down at random to a neighbour in
        ``table``, which ends with g.
        """
        return round_to_table(y, self.bounds, self.block, table, rng.uniform(y.numel(), y.device).view(y.shape))

    def rounded(self, codes: Tensor, table: tuple[int, ...]) -> Tensor:
        """``[1, n]``: the numbers that codes ``[1, n]`` say."""
        return entry_means(codes, self.bounds, self.block, table)

    def mean(self, sums: Tensor, count: int) -> Tensor:
        """``[1, n]``: the mean of ``count`` workers' numbers whose entries add up to ``sums [1, n]``."""
        return sum_means(sums, self.bounds, self.block, 2 / (count * self.g))


def count_sum_bits(g: int, world: int) -> int:
    """ceil(log2(g W + 1)): bits of a sum of W entries."""
    return (g * world).bit_length()
