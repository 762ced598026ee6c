from __future__ import annotations

import math

import pytest
import torch

import grace
from grace.collectives import Broadcast
from grace.contract.lent import Lent
from grace.contract.peer import Peer
from grace.errors import ConfigurationError, PayloadError
from grace.methods.gradiveq import GradiVeQ, GradiVeQState
from grace.run.simulator import Simulator
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

SMALL = GradiVeQ(length=8, dims=2, collect=2, use=3)
SHAPE = (12, 3, 5)  # 180 numbers: 22 slices of 8 and a tail of 4


def test_the_vector() -> None:
    method = GradiVeQ(length=2, dims=1, collect=1, use=5)
    x = torch.tensor([5.0, 0.0, 1.2, 1.6])  # the second slice lies in the span of U
    state = GradiVeQState(torch.tensor([[0.6], [0.8]]), torch.zeros(2, 2, dtype=torch.float64), 1)
    out = steps(method, [[x]], [state], first=1)[0][0]
    torch.testing.assert_close(out.mean, torch.tensor([1.8, 2.4, 1.2, 1.6]))
    torch.testing.assert_close(out.rest, torch.tensor([3.2, -2.4, 0.0, 0.0]))


def test_a_cycle_written_densely() -> None:
    world, cycle = 3, 5
    inputs = [[rand(*SHAPE, seed=10 * t + r) for r in range(world)] for t in range(2 * cycle + 1)]
    covariance, basis = torch.zeros(8, 8, dtype=torch.float64), None
    for t, (xs, outs) in enumerate(zip(inputs, steps(SMALL, inputs), strict=True)):
        mean = torch.stack(xs).double().mean(0).view(-1)
        slices = mean[:176].view(22, 8)
        if t % cycle < 2:
            covariance += slices.mT @ slices
            expected = mean
            if t % cycle == 1:
                basis = torch.linalg.eigh(covariance).eigenvectors[:, -2:]
                covariance.zero_()
        else:
            expected = torch.cat(((slices @ basis @ basis.mT).view(-1), mean[176:]))
        torch.testing.assert_close(outs[0].mean.double().view(-1), expected, rtol=1e-4, atol=1e-4)


def test_exact_in_the_span() -> None:
    """Slices of a space of dimension d are learned, and then sent without error."""
    space = rand(2, 8, seed=1)
    inputs = [[(rand(22, 2, seed=10 * t + r) @ space).view(-1) for r in range(2)] for t in range(5)]
    for xs, outs in zip(inputs, steps(SMALL, inputs), strict=True):
        torch.testing.assert_close(outs[0].mean, (xs[0] + xs[1]) / 2, rtol=1e-4, atol=1e-4)


def test_the_error_is_the_energy_outside_of_the_space() -> None:
    """On the gradient that was collected, the share that is kept is that of the leading eigenvalues."""
    x = (rand(60, 8, seed=1) * 0.6 ** torch.arange(8.0)).view(-1)
    outs = steps(GradiVeQ(length=8, dims=3, collect=1, use=1), [[x], [x]])
    energy = torch.linalg.eigvalsh(x.view(60, 8).mT.double() @ x.view(60, 8).double())
    error = float((outs[1][0].mean - x).double().square().sum())
    assert error == pytest.approx(float(energy[:-3].sum()), rel=1e-4)


def test_linear_odd_and_idempotent() -> None:
    state = steps(SMALL, [[rand(*SHAPE, seed=t)] for t in range(2)])[-1][0].state

    def compressed(x: torch.Tensor) -> torch.Tensor:
        return steps(SMALL, [[x]], [state], first=2)[0][0].mean

    x, y = rand(*SHAPE, seed=8), rand(*SHAPE, seed=9)
    torch.testing.assert_close(compressed(x) + compressed(y), compressed(x + y), rtol=1e-4, atol=1e-4)
    assert torch.equal(compressed(-x), -compressed(x))
    assert torch.equal(compressed(x * 4), compressed(x) * 4)
    torch.testing.assert_close(compressed(compressed(x)), compressed(x), rtol=1e-4, atol=1e-4)


def test_laws() -> None:
    check_agreement_and_conservation(SMALL, SHAPE, count=7)
    check_memory_loses_nothing(grace.method("gradiveq:length=8,dims=2,collect=2,use=3"), SHAPE, count=10)
    check_never_larger_than_the_mean(SMALL, (12, 15))
    check_ugly_inputs(SMALL, (12, 15))
    check_dtypes_and_layouts(SMALL, SHAPE)


@pytest.mark.parametrize("before", [0, 1, 2, 4])
def test_non_finite(before: int) -> None:
    check_non_finite(SMALL, SHAPE, before)


def test_sizes() -> None:
    method, like = grace.method("gradiveq"), torch.empty(1 << 20, device="meta")
    sent = {step: method.traffic(like, Peer(0, 2, step, lent=Lent(keep_rest=True))) for step in (0, 99, 100, 499, 500)}
    dense = 4 << 20
    assert [(t.rounds, t.sent) for t in sent.values()] == [
        (1, dense),
        (2, dense + 4 * 512 * 64),
        (1, dense // 8),
        (1, dense // 8),
        (1, dense),
    ]


@pytest.mark.parametrize(
    ("n", "sizes"), [(4, (2, 1, 2)), (60, (4, 1, 15)), (1024, (32, 4, 32)), (10**6, (512, 64, 1953))]
)
def test_smaller_tensors_have_shorter_slices(n: int, sizes: tuple[int, int, int]) -> None:
    method = GradiVeQ()
    assert method._sizes(n) == sizes
    state = method.init(torch.zeros(n))
    assert state.basis.shape == sizes[:2]
    assert state.covariance.numel() <= n


@pytest.mark.parametrize("n", [0, 1, 3])
def test_tiny_tensors_are_dense(n: int) -> None:
    x = rand(n, seed=1)
    out = steps(SMALL, [[x]] * 4)[3][0]
    assert torch.equal(out.mean, x)
    assert out.state is None


def test_all_ranks_use_the_basis_of_rank_0() -> None:
    run = SMALL.exchange(rand(*SHAPE, seed=1), SMALL.init(torch.zeros(SHAPE))._replace(turn=1), Peer(1, 2, 1))
    op = next(run)
    op = run.send(op.buf.clone())
    assert isinstance(op, Broadcast)
    assert not bool(op.buf.any())  # what others yield is only a shape
    with pytest.raises(PayloadError, match="basis"):
        run.send(torch.full_like(op.buf, math.nan))


def test_state_survives() -> None:
    policy = grace.Policy([("*", SMALL)])
    inputs = [{"x": [rand(*SHAPE, seed=3 * t + r) for r in range(2)]} for t in range(9)]
    for stop in (1, 3, 6):
        whole, first, second = (Simulator(policy, 2) for _ in range(3))
        expected = [whole.step(x)["x"] for x in inputs]
        for x in inputs[:stop]:
            first.step(x)
        second.load_state_dict(first.state_dict(), {"x": torch.zeros(SHAPE)})
        assert all(torch.equal(second.step(inputs[t])["x"], expected[t]) for t in range(stop, 9))


@pytest.mark.parametrize("knob", [{"length": 1}, {"dims": 0}, {"dims": 512}, {"collect": 0}, {"use": 0.5}])
def test_knobs(knob: dict) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(knob))):
        GradiVeQ(**knob)
