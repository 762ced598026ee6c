"""Principal components of the rows of a matrix: gradiveq."""

from __future__ import annotations

import torch
from torch import Tensor


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
