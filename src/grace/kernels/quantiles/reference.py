"""The specification of the buckets, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def quantile_buckets(rows: Tensor, seen: Tensor, q: int, zero_edge: bool) -> tuple[Tensor, Tensor, Tensor]:
    b, m = seen.shape
    j = torch.arange(1, q, device=rows.device)
    edges = seen.sort(dim=1).values[:, j * m // q]  # [b, q - 1]
    below, above = rows.amin(dim=1) < 0, rows.amax(dim=1) >= 0
    # round(q (share of negatives)): edge z - 1 is then negative, and edge z + 1 is not
    z = (2 * q * (seen < 0).sum(dim=1) + m).div(2 * m, rounding_mode="floor").clamp_(1, q - 1)
    if zero_edge:
        edges = edges.masked_fill((j == z[:, None]) & (below & above)[:, None], 0.0)
    bucket = torch.searchsorted(edges.contiguous(), rows, right=True)
    sums = torch.zeros(b, q, dtype=torch.float64, device=rows.device)
    count = torch.zeros_like(sums).scatter_add_(1, bucket, torch.ones_like(rows, dtype=torch.float64))
    means = sums.scatter_add_(1, bucket, rows.double()).div_(count.clamp_(min=1)).float()
    return means, bucket, torch.where(below & above, z, torch.where(below, q, 0))
