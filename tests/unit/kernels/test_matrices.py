from __future__ import annotations

import pytest
import torch
from torch import Tensor

from grace.kernels import orthonormal, ridge


def rand(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    "p",
    [rand(20, 3, seed=1), rand(20, 3, seed=1) * 1e37, rand(20, 3, seed=1) * 1e-37, torch.zeros(20, 3),
     rand(20, 1, seed=1).expand(20, 3), torch.eye(20)[:, [4, 4, 7]], rand(3, 3, seed=2), torch.full((20, 3), 1e-42)],
)  # fmt: skip
def test_orthonormal(p: Tensor) -> None:
    basis = orthonormal(p)
    torch.testing.assert_close(basis.mT @ basis, torch.eye(3), rtol=0, atol=1e-5)
    unit = p.double() / p.double().abs().max().clamp_min(1e-300)
    torch.testing.assert_close(basis.double() @ (basis.mT.double() @ unit), unit, rtol=0, atol=1e-5)


def test_ridge_is_its_formula() -> None:
    p = rand(20, 3, seed=1)
    gram = (p.mT @ p).double()
    expected = p.double() @ torch.linalg.inv(gram + 0.1 * gram.trace() / 3 * torch.eye(3))
    torch.testing.assert_close(ridge(p, 0.1), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("p", [torch.zeros(5, 2), torch.ones(5, 2), torch.eye(5)[:, [1, 1]] * 1e-30])
def test_ridge_of_what_has_no_inverse(p: Tensor) -> None:
    assert bool(ridge(p, 1e-9).isfinite().all())
    assert bool(ridge(p, 1e-9).any()) == bool(p.any())
