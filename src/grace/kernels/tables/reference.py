"""The specification of rounding to tables, in plain torch."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from grace.kernels.blocks import repeat_by_block
from grace.kernels.levels import block_divide


def round_to_table(y: Tensor, bounds: Tensor, block: int, table: tuple[int, ...], u: Tensor) -> Tensor:
    v = block_divide(y, bounds, block)[1].clamp_(-1, 1).add_(1).mul_(table[-1] / 2)
    entries = _on(table, v.dtype, v.device)
    near = v.round()
    v = torch.where((v - near).abs() <= 1e-6 * v.clamp_min(1.0), near, v)
    low = torch.bucketize(v, entries, right=True).sub_(1).clamp_(0, len(table) - 2)
    lo, hi = entries[low], entries[low + 1]
    return (low + (u * (hi - lo) < v - lo)).to(torch.uint8)


def sum_entries(codes: Tensor, table: tuple[int, ...]) -> Tensor:
    return _on(table, torch.int64, codes.device)[codes.long()].sum(dim=0, keepdim=True).int()


def sum_means(sums: Tensor, bounds: Tensor, block: int, factor: float) -> Tensor:
    share = sums.double().mul_(factor).sub_(1).float()
    return share.mul_(repeat_by_block(bounds, sums.shape[1], block))


def entry_means(codes: Tensor, bounds: Tensor, block: int, table: tuple[int, ...]) -> Tensor:
    return sum_means(_on(table, torch.int64, codes.device)[codes.long()], bounds, block, 2 / table[-1])


@functools.lru_cache(maxsize=64)
def _on(table: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """T as a tensor, copied to a device once."""
    return torch.tensor(table, dtype=dtype, device=device)
