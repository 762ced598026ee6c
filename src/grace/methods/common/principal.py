"""Principal components of the rows of a matrix: gradiveq."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.collectives import Broadcast, Exchange
from grace.errors import PayloadError
from grace.flags.refusals import refuse_unless


def collect_covariance(slices: Tensor) -> Tensor:
    """``[N, K]`` -> ``[K, K]`` float64: slices^T slices, without overflow."""
    largest = slices.abs().max().clamp_min(torch.finfo(slices.dtype).tiny)
    unit = slices / largest
    return (unit.mT @ unit).double() * largest.double().square()


def leading_components(covariance: Tensor, d: int) -> Tensor:
    """``[K, K]`` -> ``[K, d]`` float32: the eigenvectors of the d largest eigenvalues, the largest first."""
    scaled = covariance / covariance.diagonal().max().clamp_min(torch.finfo(torch.float64).tiny)
    vectors: Tensor = torch.linalg.eigh(scaled).eigenvectors  # of ascending eigenvalues
    return vectors[:, -d:].flip(1).float().contiguous()


def share_components(covariance: Tensor, d: int, rank: int) -> Exchange[Tensor]:
    """:func:`leading_components` on rank 0, broadcast to the others: the same bits on all ranks.

    Raises:
        PayloadError: what came cannot be parts of unit vectors.
    """
    empty = torch.zeros(covariance.shape[0], d, device=covariance.device, dtype=torch.float32)
    basis = yield Broadcast(leading_components(covariance, d) if rank == 0 else empty, 0)
    fine = (basis.abs() <= 1.001).all()
    refuse_unless(fine, lambda: PayloadError("field 'basis' must hold parts of unit vectors, in [-1, 1]"))
    return basis
