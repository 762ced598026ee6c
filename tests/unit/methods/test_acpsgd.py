from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import grace
from grace.contract.lent import Lent
from grace.contract.peer import Peer
from grace.errors import ConfigurationError
from grace.methods.acpsgd import ACPSGD, ACPState
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

SMALL = ACPSGD(rank=2, min_rate=0.1)
SHAPE = (12, 3, 5)


def test_the_vector() -> None:
    matrix = torch.tensor([[3.0, 0.0], [4.0, 0.0]])
    method = ACPSGD(rank=1, min_rate=0.1)
    start = ACPState(torch.zeros(2, 1), torch.tensor([[1.0], [0.0]]), 0)
    first, second = steps(method, [[matrix]] * 2, [start])
    torch.testing.assert_close(first[0].mean, matrix)
    torch.testing.assert_close(first[0].rest, torch.zeros(2, 2), rtol=0, atol=1e-6)
    torch.testing.assert_close(second[0].mean, matrix)
    p = first[0].state.p  # the state is donated: this is P of both steps, [3, 4] but for its scale
    torch.testing.assert_close(p.abs() / p.norm(), torch.tensor([[0.6], [0.8]]))
    q = second[0].state.q
    torch.testing.assert_close(q.abs() / q.norm(), torch.tensor([[1.0], [0.0]]))


def test_the_recursion_with_projectors() -> None:
    """Each step projects the mean on the column space of the last factor: M Q Q^+, then P P^+ M, ..."""
    inputs = [[rand(*SHAPE, seed=10 * t + r) for r in range(3)] for t in range(5)]
    q = SMALL.init(inputs[0][0]).q.double()
    p = torch.empty(0)
    for t, (xs, outs) in enumerate(zip(inputs, steps(SMALL, inputs), strict=True)):
        mean = torch.stack(xs).double().mean(0).view(12, 15)
        if t % 2 == 0:
            expected = mean @ q @ torch.linalg.pinv(q)
            p = mean @ torch.linalg.qr(q).Q
        else:
            expected = p @ torch.linalg.pinv(p) @ mean
            q = mean.mT @ torch.linalg.qr(p).Q
        torch.testing.assert_close(outs[0].mean.view(12, 15).double(), expected, rtol=1e-3, atol=1e-4)


def test_exact_for_low_rank_after_two_steps() -> None:
    matrix = rand(20, 2, seed=1) @ rand(2, 15, seed=2)
    outs = steps(SMALL, [[matrix, matrix]] * 4)
    for out in outs[1:]:
        torch.testing.assert_close(out[0].mean, matrix, rtol=1e-4, atol=1e-4)


def test_it_follows_the_leading_space() -> None:
    """On a constant gradient the error falls to that of the best approximation of this rank."""
    matrix = rand(30, 20, seed=1) @ torch.diag(0.7 ** torch.arange(20.0))
    singular = torch.linalg.svdvals(matrix)
    out = steps(SMALL, [[matrix]] * 60)[-1][0]
    assert float((matrix - out.mean).norm()) == pytest.approx(float(singular[2:].norm()), rel=1e-3)


def test_laws() -> None:
    check_agreement_and_conservation(SMALL, SHAPE)
    check_memory_loses_nothing(grace.method("acpsgd:rank=2,min_rate=0.1"), SHAPE)
    check_never_larger_than_the_mean(SMALL, (12, 15))
    check_ugly_inputs(SMALL, (12, 15))
    check_dtypes_and_layouts(SMALL, SHAPE)


@pytest.mark.parametrize("before", [0, 1, 2])
def test_non_finite(before: int) -> None:
    check_non_finite(SMALL, SHAPE, before)


def test_sizes() -> None:
    method, like = grace.method("acpsgd"), torch.empty(512, 256, device="meta")
    first, second = (method.traffic(like, Peer(0, 2, step)) for step in (0, 1))
    assert (first.rounds, first.sent) == (1, 4 * 4 * 512)  # a ring of two moves each byte once
    assert (second.rounds, second.sent) == (1, 4 * 4 * 256)
    small = torch.zeros(16, 4)
    assert method.traffic(small, Peer(0, 2, lent=Lent(keep_rest=True))).sent == 4 * 64
    assert method.init(small)[1] is None
    assert method.init(torch.zeros(5000))[1] is None


@pytest.mark.parametrize("knob", [{"rank": 0}, {"rank": 1.5}, {"min_rate": 0}, {"min_rate": float("nan")}])
def test_knobs(knob: dict) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(knob))):
        ACPSGD(**knob)


# ---- the step that it bears -----------------------------------------------------------------------------------------
# Least squares of 8 workers, 64 x 40 numbers each, 30 outputs: the largest curvature is L = 1.58. Under error feedback a
# direction waits T steps until a basis of rank r contains it, and is then sent T times its gradient, all of them from where
# it stood. Its error is multiplied by 1 - lr T L in T steps, so that a step above 2 / (T L) diverges, whatever the code. On
# a flat spectrum no direction is preferred and T is about l/r = 30/4: the bound is 0.17.
INPUTS = torch.randn(8, 64, 40, generator=torch.Generator().manual_seed(0))
TRUTH = torch.randn(40, 30, generator=torch.Generator().manual_seed(1))


def descend(lr: float, average: Callable[[Tensor], Tensor], steps: int = 60) -> float:
    """The loss after so many steps, relative to where it started; ``average`` makes an update of gradients [8, 40, 30]."""
    weight, truth = torch.zeros(40, 30), TRUTH
    for _ in range(steps):
        weight = weight - lr * average(INPUTS.mT @ (INPUTS @ (weight - truth)) / 64)
    return float((INPUTS @ (weight - truth)).square().mean() / (INPUTS @ truth).square().mean())


class Paper:
    """Algorithm 1 of the paper, line by line: M gradients, E memories, P and Q factors."""

    def __init__(self, rank: int, seed: int):
        made = torch.Generator().manual_seed(seed)
        self.P, self.Q = torch.randn(40, rank, generator=made), torch.randn(30, rank, generator=made)
        self.E, self.step = torch.zeros(8, 40, 30), 0

    def __call__(self, M: Tensor) -> Tensor:
        self.step += 1
        if self.step % 2 == 1:
            self.Q = torch.linalg.qr(self.Q).Q
            P = (M + self.E) @ self.Q
            self.E = self.E + M - P @ self.Q.mT
            self.P = P.mean(0)
        else:
            self.P = torch.linalg.qr(self.P).Q
            Q = (M + self.E).mT @ self.P
            self.E = self.E + M - self.P @ Q.mT
            self.Q = Q.mean(0)
        return self.P @ self.Q.mT


@pytest.mark.parametrize(("lr", "low", "high"), [(0.05, 1e-3, 6e-3), (0.1, 3e-4, 3e-3), (0.2, 1.5, 10.0)])
def test_it_bears_the_step_that_the_paper_bears(lr: float, low: float, high: float) -> None:
    """The paper's algorithm, written out anew, converges and diverges where this one does."""
    for seed in range(3):
        assert low < descend(lr, Paper(4, seed)) < high
    simulator = grace.Simulator("acpsgd:rank=4", 8)
    assert low < descend(lr, lambda M: simulator.step({"w": list(M)})["w"]) < high


def test_a_direction_that_waits_diverges_beyond_the_bound() -> None:
    """The argument in its purest form: directions served in turn, every T-th step, without any low rank in it."""
    curvature = float(torch.linalg.eigvalsh((INPUTS.mT @ INPUTS / 64).mean(0))[-1])
    assert curvature == pytest.approx(1.58, abs=0.05)
    T = 8
    for lr, grows in ((0.9 * 2 / (T * curvature), False), (1.1 * 2 / (T * curvature), True)):
        error, owed = 1.0, 0.0
        for step in range(20 * T):
            owed += curvature * error
            if step % T == T - 1:
                error, owed = error - lr * owed, 0.0
        assert (abs(error) > 1) == grows


def test_power_sgd_bears_more_because_its_basis_follows_what_is_owed() -> None:
    simulator = grace.Simulator("powersgd:rank=4", 8)
    assert descend(0.2, lambda M: simulator.step({"w": list(M)})["w"]) < 1e-3
