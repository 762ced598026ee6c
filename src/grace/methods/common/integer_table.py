"""Stochastic rounding to a table of integers whose sums need no decoding: thc.

Letters: T the table of 2**bits integers from 0 to g; W workers; A the largest number of a block that is sent unclipped.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grace.kernels import MOST

# bits: the table that minimizes the variance for clip = 1/32
_TABLES = {
    3: (0, 3, 5, 7, 9, 11, 13, 16),
    4: (0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30),
}


def choose_table(bits: int, uniform: bool) -> tuple[int, ...]:
    """T, ascending: the table for Gaussian numbers (3 or 4 bits), or 0, 1, ..., 2**bits - 1."""
    return tuple(range(1 << bits)) if uniform else _TABLES[bits]


def bounds_of(norm: Tensor, roots: Tensor, reach: float) -> Tensor:
    """A ``[..., nb]``: ``reach`` times the root mean square, from the norms of blocks and the roots of their sizes, which have
    the same shape; 0 where that is practically zero.
    """
    rms = norm / roots
    rms = torch.where(rms < torch.finfo(torch.float32).tiny, 0.0, rms)
    return (rms.double() * reach).clamp_max_(MOST).float()


def count_sum_bits(g: int, world: int) -> int:
    """ceil(log2(g W + 1)): bits of a sum of W entries."""
    return (g * world).bit_length()
