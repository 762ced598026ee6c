from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import grace
from grace.contract.peer import Peer
from grace.errors import ConfigurationError
from grace.kernels import solve_ridge
from grace.methods.gradzip import GradZip, GradZipState
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
    """The absolute regularizer 1 is relative 1 for Q and 0.16 for P."""
    matrix = torch.tensor([[3.0, 0.0], [4.0, 0.0]], dtype=torch.float64)
    p = matrix @ solve_ridge(torch.tensor([[1.0, 0.0]]), 1.0).mT
    torch.testing.assert_close(p, torch.tensor([[1.5], [2.0]], dtype=torch.float64))
    q = matrix.mT @ solve_ridge(p.mT.float().contiguous(), 1 / 6.25).mT
    torch.testing.assert_close(q, torch.tensor([[12.5 / 7.25], [0.0]], dtype=torch.float64))
    product = torch.tensor([[2.586, 0.0], [3.448, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(p @ q.mT, product, rtol=0, atol=1e-3)


def test_the_vector_with_a_relative_regularizer() -> None:
    """lam = 1: P = M Q / 2, Q = M^T P / (2 |P|^2), so that C = M / 2; but for the fresh part of Q."""
    matrix = torch.tensor([[3.0, 0.0], [4.0, 0.0]])
    out = steps(
        GradZip(rank=1, lam=1, min_rate=0.1), [[matrix]], [GradZipState(None, torch.tensor([[1.0], [0.0]]), 0)]
    )[0][0]
    torch.testing.assert_close(out.mean, matrix / 2)


def test_least_squares() -> None:
    """C is the ridge regression of the mean on P: P (P^T P + b I)^-1 P^T mean; P spans mean Q."""
    lam, r = 0.05, 2
    xs = [rand(12, 15, seed=r) for r in range(3)]
    method = GradZip(rank=r, lam=lam, min_rate=0.1)
    q = method.init(xs[0]).q.double()
    fresh = Peer(0, 3, 0, "x").shared("gradzip").normal(15 * r).view(15, r).double()
    out = steps(method, [xs])[0][0]
    mean = torch.stack(xs).double().mean(0)
    q = q / q.abs().max() + 1e-4 * fresh
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
    first = torch.outer(rand(20, seed=1), rand(15, seed=2))
    two = rand(20, 2, seed=3) @ rand(2, 15, seed=4)
    outs = steps(SMALL, [[first]] * 20 + [[torch.zeros(20, 15)]] * 2 + [[two]] * 3)
    assert float((outs[19][0].mean - first).norm()) < 1e-3 * float(first.norm())
    assert float((outs[-1][0].mean - two).norm()) < 1e-2 * float(two.norm())


def test_scale_does_not_matter() -> None:
    x = rand(20, 15, seed=1)
    small, large = (steps(SMALL, [[x * scale]])[0][0].mean / scale for scale in (1.0, 2.0**60))
    torch.testing.assert_close(small, large)


def test_one_factor_per_step() -> None:
    """Step 0 is the regression of the mean's rows on Q, step 1 that of its columns on P."""
    lam, method = 0.05, GradZip(rank=2, lam=0.05, min_rate=0.1, alternate=True)
    inputs = [[rand(12, 15, seed=10 * t + r) for r in range(3)] for t in range(2)]
    factor = method.init(inputs[0][0]).q.double()
    for t, outs in enumerate(steps(method, inputs)):
        mean = torch.stack(inputs[t]).double().mean(0)
        mean = mean.mT if t else mean
        fresh = Peer(0, 3, t, "x").shared("gradzip").normal(factor.numel()).view(factor.shape).double()
        factor = factor / factor.abs().max() + 1e-4 * fresh
        gram = factor.mT @ factor
        solution = mean @ factor @ torch.linalg.inv(gram + lam * gram.trace() / 2 * torch.eye(2))
        expected = solution @ factor.mT
        torch.testing.assert_close(outs[0].mean.double(), expected.mT if t else expected, rtol=1e-4, atol=1e-5)
        factor = solution


def test_exact_for_low_rank_with_one_factor_per_step() -> None:
    matrix = rand(20, 2, seed=1) @ rand(2, 15, seed=2)
    out = steps(GradZip(rank=2, lam=1e-9, min_rate=0.1, alternate=True), [[matrix] * 2] * 2)[1][0]
    assert float((out.mean - matrix).norm()) < 3e-3 * float(matrix.norm())  # the fresh part of P


@pytest.mark.parametrize("method", [SMALL, replace(SMALL, alternate=True)], ids=str)
def test_laws(method: GradZip) -> None:
    check_agreement_and_conservation(method, SHAPE)
    check_memory_loses_nothing(grace.ErrorFeedback(method), SHAPE)
    check_never_larger_than_the_mean(method, (12, 15))
    check_ugly_inputs(method, (12, 15))
    check_dtypes_and_layouts(method, SHAPE)


@pytest.mark.parametrize("method", [SMALL, replace(SMALL, alternate=True)], ids=str)
@pytest.mark.parametrize("before", [0, 1])
def test_non_finite(method: GradZip, before: int) -> None:
    check_non_finite(method, SHAPE, before)


def test_sizes() -> None:
    method, like = grace.method("gradzip"), torch.empty(512, 256, device="meta")
    traffic = method.traffic(like, Peer(0, 2))
    assert (traffic.rounds, traffic.sent) == (2, 4 * 4 * (512 + 256))
    assert method.facts(like).payload == 4 * 4 * (512 + 256)
    assert method.init(torch.zeros(16, 4))[1] is None


@pytest.mark.parametrize("knob", [{"rank": 0}, {"lam": 0}, {"lam": 1e4}, {"min_rate": -1}, {"alternate": 1}])
def test_knobs(knob: dict) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(knob))):
        GradZip(**knob)
