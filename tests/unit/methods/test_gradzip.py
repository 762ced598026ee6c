from __future__ import annotations

import pytest
import torch

import grace
from grace.errors import ConfigurationError
from grace.kernels import ridge
from grace.method import Peer
from grace.methods.gradzip import GradZip
from tests.unit.methods.lowrank_helpers import (
    check_agreement_and_conservation,
    check_dtypes_and_layouts,
    check_memory_loses_nothing,
    check_never_larger_than_the_mean,
    check_non_finite,
    check_ugly_inputs,
    rand,
    steps,
)

SMALL = GradZip(rank=2, min_rate=0.1)
SHAPE = (12, 3, 5)


def test_the_vector() -> None:
    """The absolute regulariser 1 is relative 1 for Q and 0.16 for P."""
    matrix = torch.tensor([[3.0, 0.0], [4.0, 0.0]], dtype=torch.float64)
    p = matrix @ ridge(torch.tensor([[1.0], [0.0]]), 1.0)
    torch.testing.assert_close(p, torch.tensor([[1.5], [2.0]], dtype=torch.float64))
    q = matrix.mT @ ridge(p, 1 / 6.25)
    torch.testing.assert_close(q, torch.tensor([[12.5 / 7.25], [0.0]], dtype=torch.float64))
    product = torch.tensor([[2.586, 0.0], [3.448, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(p @ q.mT, product, rtol=0, atol=1e-3)


def test_the_vector_with_a_relative_regulariser() -> None:
    """lam = 1: P = M Q / 2, Q = M^T P / (2 |P|^2), so that C = M / 2; but for the fresh part of Q."""
    matrix = torch.tensor([[3.0, 0.0], [4.0, 0.0]])
    out = steps(GradZip(rank=1, lam=1, min_rate=0.1), [[matrix]], [torch.tensor([[1.0], [0.0]])])[0][0]
    torch.testing.assert_close(out.mean, matrix / 2)


def test_least_squares() -> None:
    """C is the ridge regression of the mean on P: P (P^T P + b I)^-1 P^T mean; P spans mean Q."""
    lam, r = 0.05, 2
    xs = [rand(12, 15, seed=r) for r in range(3)]
    method = GradZip(rank=r, lam=lam, min_rate=0.1)
    q = method.init(xs[0]).double()
    fresh = Peer(0, 3, 0, "x").shared("gradzip").normal(15 * r).view(15, r).double()
    out = steps(method, [xs])[0][0]
    mean = torch.stack(xs).double().mean(0)
    q = q / q.abs().max() + 1e-3 * fresh
    p = mean @ q @ torch.linalg.inv(q.mT @ q + lam * (q.mT @ q).trace() / r * torch.eye(r))
    gram = p.mT @ p
    expected = p @ torch.linalg.inv(gram + lam * gram.trace() / r * torch.eye(r)) @ p.mT @ mean
    torch.testing.assert_close(out.mean.double(), expected, rtol=1e-4, atol=1e-5)


def test_exact_for_low_rank_as_lam_vanishes() -> None:
    matrix = rand(20, 2, seed=1) @ rand(2, 15, seed=2)
    errors = [
        float((steps(GradZip(rank=2, lam=lam, min_rate=0.1), [[matrix] * 2] * 3)[-1][0].mean - matrix).norm())
        for lam in (1.0, 1e-2, 1e-4, 1e-9)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[3] < 1e-4 * float(matrix.norm())


def test_it_leaves_a_space_that_it_fell_into() -> None:
    one = torch.outer(rand(20, seed=1), rand(15, seed=2))
    two = rand(20, 2, seed=3) @ rand(2, 15, seed=4)
    method = GradZip(rank=2, lam=1e-6, min_rate=0.1)
    outs = steps(method, [[one]] * 20 + [[torch.zeros(20, 15)]] * 2 + [[two]] * 3)
    torch.testing.assert_close(outs[19][0].mean, one, rtol=1e-3, atol=1e-3)
    assert float((outs[-1][0].mean - two).norm()) < 1e-2 * float(two.norm())


def test_scale_does_not_matter() -> None:
    x = rand(20, 15, seed=1)
    small, large = (steps(SMALL, [[x * scale]])[0][0].mean / scale for scale in (1.0, 2.0**60))
    torch.testing.assert_close(small, large)


def test_laws() -> None:
    check_agreement_and_conservation(SMALL, SHAPE)
    check_memory_loses_nothing(grace.method("gradzip:rank=2,min_rate=0.1"), SHAPE)
    check_never_larger_than_the_mean(SMALL, (12, 15))
    check_ugly_inputs(SMALL, (12, 15))
    check_dtypes_and_layouts(SMALL, SHAPE)


@pytest.mark.parametrize("before", [0, 1])
def test_non_finite(before: int) -> None:
    check_non_finite(SMALL, SHAPE, before)


def test_sizes() -> None:
    method, like = grace.method("gradzip"), torch.empty(512, 256, device="meta")
    traffic = method.traffic(like, Peer(0, 2))
    assert (traffic.rounds, traffic.sent) == (2, 4 * 4 * (512 + 256))
    assert method.facts(like).payload == 4 * 4 * (512 + 256)
    assert method.init(torch.zeros(16, 4))[1] is None


@pytest.mark.parametrize("knob", [{"rank": 0}, {"lam": 0}, {"lam": 1e4}, {"min_rate": -1}])
def test_knobs(knob: dict) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(knob))):
        GradZip(**knob)
