"""Small dense linear algebra on tall matrices: r columns, of which there are few. Same input, same bits on all ranks."""

from __future__ import annotations

import torch
from torch import Tensor


def orthonormal(p: Tensor) -> Tensor:
    """``[m, r]``, m >= r -> ``[m, r]``: an orthonormal basis of a space that holds p's columns; others complete it."""
    largest = p.abs().amax(dim=0).clamp_min(torch.finfo(p.dtype).tiny)
    basis: Tensor = torch.linalg.qr(p / largest).Q
    return basis


def ridge(p: Tensor, lam: float) -> Tensor:
    """``[m, r]`` -> ``[m, r]`` float64: ``P (P^T P + lam t I)^-1`` with ``t = trace(P^T P) / r``; 0 for 0."""
    wide = p.double()
    gram = wide.mT @ wide  # [r, r]
    size = gram.diagonal().mean()
    if not bool(size > 0):
        return torch.zeros_like(wide)
    gram.diagonal().add_(lam * size)
    return torch.cholesky_solve(wide.mT, torch.linalg.cholesky(gram)).mT


def water_filling(sizes: Tensor, budget: float) -> Tensor:
    """``[n]`` sizes >= 0 -> ``[n]`` float64 probabilities with sum ``min(budget, non-zeros)``: proportional to the sizes,
    but at most 1; what is cut off goes to the others. The least variance that so many random picks can have.
    """
    order = sizes.double().argsort(descending=True, stable=True)
    ordered = sizes.double()[order]
    ordered = ordered / ordered[:1].clamp_min(torch.finfo(torch.float64).tiny)
    total = ordered.flip(0).cumsum(0).flip(0)  # [n]: the sum of this one and all smaller ones
    room = (budget - torch.arange(len(ordered), dtype=torch.float64, device=sizes.device)).clamp_min(0.0)
    sure = ((ordered * room >= total) & (ordered > 0)).to(torch.int64).cumprod(0)  # a prefix
    first = int(sure.sum())
    p = torch.ones_like(ordered)
    if first < len(ordered):
        p[first:] = ordered[first:] * (room[first] / total[first].clamp_min(torch.finfo(torch.float64).tiny))
    return torch.empty_like(p).scatter_(0, order, p.clamp_max_(1.0))
