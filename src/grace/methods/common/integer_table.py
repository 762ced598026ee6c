"""Stochastic rounding to a table of integers whose sums need no decoding: thc.

Letters: T the table of 2**bits integers from 0 to g; W workers.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from grace.random import Stream

# bits: the table that minimises the variance for clip = 1/32
_TABLES = {
    3: (0, 3, 5, 7, 9, 11, 13, 16),
    4: (0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30),
}


def choose_table(bits: int, uniform: bool) -> tuple[int, ...]:
    """T, ascending: that for Gaussian numbers (of 3 or 4 bits), or 0, 1, ..., 2**bits - 1."""
    return tuple(range(1 << bits)) if uniform else _TABLES[bits]


def round_to_table(v: Tensor, table: tuple[int, ...], rng: Stream) -> Tensor:
    """Z ``[1, n]`` for v ``[1, n]`` in [0, g]: T[z] is one of v's neighbours in T, up with probability (v - lo)/(hi - lo)."""
    entries = table_on(table, v.dtype, v.device)
    near = v.round()
    v = torch.where((v - near).abs() <= 1e-6 * v.clamp_min(1.0), near, v)
    low = torch.bucketize(v, entries, right=True).sub_(1).clamp_(0, len(table) - 2)
    lo, hi = entries[low], entries[low + 1]
    u = rng.uniform(v.numel(), v.device).view(v.shape)
    return low + (u * (hi - lo) < v - lo)


def count_sum_bits(g: int, world: int) -> int:
    """ceil(log2(g W + 1)): bits of a sum of W entries."""
    return (g * world).bit_length()


@functools.lru_cache(maxsize=64)
def table_on(table: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """T as a tensor, copied to a device once."""
    return torch.tensor(table, dtype=dtype, device=device)
