from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from grace import backends
from grace.errors import InputError
from grace.kernels import orthonormal, ridge, split_low_rank
from tests.unit.kernels.native_checks import TARGETS, needs_native, offset, same_bits, with_threads


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


@pytest.mark.parametrize("target", TARGETS or ["reference"])
def test_split_low_rank_is_its_products(target: str) -> None:
    for seed, (m, l, r) in enumerate([(1, 1, 1), (3, 70, 2), (40, 1300, 4), (7, 64, 1), (513, 1030, 5), (600, 1, 1)]):
        x, p, mine, q = rand(m, l, seed=seed), rand(m, r, seed=9), rand(r, l, seed=10), rand(r, l, seed=11)
        got = []
        for threads in (1, 3):
            with backends.using(target), with_threads(threads):
                left, out = offset(x, threads), offset(torch.full_like(x, math.nan), 1)
                split_low_rank(left, p, mine, q, out)
                torch.testing.assert_close(left.double(), x.double() - p.double() @ mine.double(), rtol=1e-5, atol=1e-5)
                torch.testing.assert_close(out.double(), p.double() @ q.double(), rtol=1e-5, atol=1e-5)
                only = torch.empty_like(x)
                split_low_rank(None, p, mine, q, only)
                got += [(left, out), (left, only)]
        assert all(same_bits(a, b) for pair in got[1:] for a, b in zip(got[0], pair, strict=True))


@needs_native
def test_split_low_rank_has_the_same_bits_on_all_instruction_sets() -> None:
    x, p, mine, q = rand(37, 1111, seed=1), rand(37, 4, seed=2), rand(4, 1111, seed=3), rand(4, 1111, seed=4)
    got = []
    for target in TARGETS:
        with backends.using(target):
            left, out = x.clone(), torch.empty_like(x)
            split_low_rank(left, p, mine, q, out)
            got.append((left, out))
    assert all(same_bits(a, b) for pair in got[1:] for a, b in zip(got[0], pair, strict=True))


@needs_native
def test_split_low_rank_refuses_what_does_not_fit() -> None:
    x, p, mine = rand(4, 6, seed=1), rand(4, 2, seed=2), rand(2, 6, seed=3)
    with pytest.raises(InputError, match="mine"):
        split_low_rank(x, p, rand(2, 5, seed=1), mine, torch.empty(4, 6))
    with pytest.raises(InputError, match="out"):
        split_low_rank(x, p, mine, mine, torch.empty(6, 4))
    with pytest.raises(InputError, match="not contiguous"):
        split_low_rank(rand(6, 4, seed=1).mT, p, mine, mine, torch.empty(4, 6))
