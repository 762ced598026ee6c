"""Stochastic rounding to a table of integers whose sums need no decoding: thc.

Letters: T the table of 2**bits integers from 0 to g; W workers; A the largest number of a block that is sent unclipped.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from grace.kernels import MOST, block_divide, block_roots, repeat_by_block
from grace.random import Stream

# bits: the table that minimizes the variance for clip = 1/32
_TABLES = {
    3: (0, 3, 5, 7, 9, 11, 13, 16),
    4: (0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30),
}


def choose_table(bits: int, uniform: bool) -> tuple[int, ...]:
    """T, ascending: the table for Gaussian numbers (3 or 4 bits), or 0, 1, ..., 2**bits - 1."""
    return tuple(range(1 << bits)) if uniform else _TABLES[bits]


def round_to_table(v: Tensor, table: tuple[int, ...], rng: Stream) -> Tensor:
    """Z ``[1, n]`` for v ``[1, n]`` in [0, g]: T[z] is one of v's neighbors in T, up with probability (v - lo)/(hi - lo)."""
    entries = table_on(table, v.dtype, v.device)
    near = v.round()
    v = torch.where((v - near).abs() <= 1e-6 * v.clamp_min(1.0), near, v)
    low = torch.bucketize(v, entries, right=True).sub_(1).clamp_(0, len(table) - 2)
    lo, hi = entries[low], entries[low + 1]
    u = rng.uniform(v.numel(), v.device).view(v.shape)
    return low + (u * (hi - lo) < v - lo)


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

    def levels(self, y: Tensor) -> Tensor:
        """``[1, n]`` in [0, g]: where the numbers y ``[1, n]``, clipped to [-A, A], lie between the entries of the table."""
        return block_divide(y, self.bounds, self.block)[1].clamp_(-1, 1).add_(1).mul_(self.g / 2)

    def mean(self, sums: Tensor, count: int) -> Tensor:
        """``[1, n]``: the mean of ``count`` workers' numbers whose entries add up to ``sums [1, n]``."""
        share = sums.double().mul_(2 / (count * self.g)).sub_(1).float()  # in [-1, 1]
        return share.mul_(repeat_by_block(self.bounds, sums.shape[1], self.block))


def count_sum_bits(g: int, world: int) -> int:
    """ceil(log2(g W + 1)): bits of a sum of W entries."""
    return (g * world).bit_length()


@functools.lru_cache(maxsize=64)
def table_on(table: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """T as a tensor, copied to a device once."""
    return torch.tensor(table, dtype=dtype, device=device)
