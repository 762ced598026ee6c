"""Small dense linear algebra on tall matrices: r columns, of which there are few. Same input, same bits on all ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from grace import backends, native
from grace.kernels import check

__all__ = ["orthonormal", "ridge", "split_low_rank", "water_filling"]

_LOW_RANK = native.declare("low_rank", *[native.P] * 5, *[native.N] * 3, native.I)


def orthonormal(p: Tensor) -> Tensor:
    """``[m, r]``, m >= r -> ``[m, r]``: an orthonormal basis of a space that holds p's columns; others complete it."""
    largest = p.abs().amax(dim=0).clamp_min(torch.finfo(p.dtype).tiny)
    basis: Tensor = torch.linalg.qr(p / largest).Q
    return basis


def split_low_rank(x: Tensor | None, p: Tensor, mine: Tensor, q: Tensor, out: Tensor) -> None:
    """``x -= P M``, what is left of a worker's matrix (None: nobody wants it), and ``out = P Q``, the mean, in one pass.

    x and out ``[m, l]``, p ``[m, r]``, mine and q ``[r, l]``; float32, contiguous. ``out`` must not overlap the others.
    Native kernels add up in the order of r, without fused multiplications, and give the same bits on all of them; torch's
    products round otherwise.

    Raises:
        InputError: another dtype, shape or memory layout.
    """
    fast = backends.function(_LOW_RANK) if out.device.type == "cpu" else None
    if fast is None:
        if x is not None:
            x.addmm_(p, mine, alpha=-1)
        torch.mm(p, q, out=out)
        return
    m, l, r = p.shape[0], q.shape[1], p.shape[1]
    fast(
        None if x is None else check.numbers("x", x, (m, l)),
        check.numbers("out", out, (m, l)),
        check.numbers("p", p),
        check.numbers("mine", mine, (r, l)),
        check.numbers("q", q, (r, l)),
        *(m, l, r, native.threads()),
    )


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
