"""Equation 4 by hand, the bound on the memory, momentum, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import grace
from grace import Allgather, Allreduce, ErrorFeedback, Momentum, Peer, TopK
from grace.contract.method import Method
from grace.errors import CompositionError, ConfigurationError
from grace.run import simulate

TOP1 = Allgather(TopK(ratio=0.25))


def steps(method: Method[Any], gradients: Sequence[Sequence[float]]) -> list[tuple[list[float], list[float]]]:
    """(mean, memory) of one worker after each step."""
    state, seen = method.init(torch.tensor(gradients[0], dtype=torch.float32)), []
    for step, gradient in enumerate(gradients):
        (out,) = simulate([method.exchange(torch.tensor(gradient, dtype=torch.float32), state, Peer(0, 1, step))])
        state = out.state
        seen.append((out.mean.tolist(), state[0].tolist()))
    return seen


def test_what_is_not_sent_is_added():
    seen = steps(ErrorFeedback(TOP1), [[1, 2, 3, 4], [0, 0, 0.5, 0], [0, 0, 0, 0]])
    assert seen[0] == ([0, 0, 0, 4], [1, 2, 3, 0])
    assert seen[1] == ([0, 0, 3.5, 0], [1, 2, 0, 0])
    assert seen[2] == ([0, 2, 0, 0], [1, 0, 0, 0])


def test_beta_decays_the_memory_and_gamma_weighs_the_gradient():
    seen = steps(ErrorFeedback(TOP1, beta=0.5, gamma=2.0), [[1, 2, 3, 4], [0, 0, 0, 1]])
    assert seen[0] == ([0, 0, 0, 8], [2, 4, 6, 0])  # gamma on the first step too
    assert seen[1] == ([0, 0, 3, 0], [1, 2, 0, 2])  # p = 0.5 e + 2 g = [1, 2, 3, 2]


def test_scaled_signs_by_hand():
    seen = steps(ErrorFeedback(Allgather(grace.EFSignSGD())), [[1, -2, 3, -4]])
    assert seen[0] == ([2.5, -2.5, 2.5, -2.5], [-1.5, 0.5, 0.5, -1.5])


def test_the_memory_is_bounded():
    """|e|^2 <= 4 (1 - delta) / delta^2 max |g|^2, the standard bound."""
    method, delta = ErrorFeedback(Allgather(TopK(ratio=0.1))), 0.1
    generator = torch.Generator().manual_seed(0)
    state, largest = method.init(torch.empty(100)), 0.0
    for step in range(300):
        g = torch.randn(100, generator=generator)
        largest = max(largest, float(g.square().sum()))
        (out,) = simulate([method.exchange(g, state, Peer(0, 1, step))])
        state = out.state
        assert float(state[0].square().sum()) <= 4 * (1 - delta) / delta**2 * largest


def test_momentum_by_hand():
    method = Momentum(Allgather(grace.SignSGD()))
    seen = steps(method, [[1.0, -1.0], [-0.5, -1.0]])
    assert seen[0][0] == [1.0, -1.0]
    torch.testing.assert_close(torch.tensor(seen[0][1]), torch.tensor([0.1, -0.1]))
    assert seen[1][0] == [1.0, -1.0]
    torch.testing.assert_close(torch.tensor(seen[1][1]), torch.tensor([0.04, -0.19]))


def test_momentum_around_error_feedback_keeps_both():
    method = Momentum(ErrorFeedback(TOP1), beta=0.0)
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    (out,) = simulate([method.exchange(x.clone(), method.init(x), Peer(0, 1))])
    assert out.state[0].tolist() == [1, 2, 3, 4]
    assert method.owed(out.state).tolist() == [1, 2, 3, 0], "what is owed is the inner memory, not the momentum"


@pytest.mark.parametrize(
    ("dtype", "memory"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
@pytest.mark.parametrize("make", [ErrorFeedback, Momentum])
def test_memories_are_at_least_float32(make: Any, dtype: torch.dtype, memory: torch.dtype):
    method = make(TOP1)
    x = torch.arange(1.0, 9.0).to(dtype).view(2, 4)
    state = method.init(x)
    assert state[0].dtype == memory
    (out,) = simulate([method.exchange(x.clone(), state, Peer(0, 1))])
    assert out.mean.dtype == dtype
    assert out.state[0].dtype == memory


def test_float64_keeps_what_float32_cannot_hold():
    method = ErrorFeedback(Allgather(grace.Identity()))
    x = torch.tensor([1 + 1e-12, -math.pi], dtype=torch.float64)
    (out,) = simulate([method.exchange(x.clone(), method.init(x), Peer(0, 1))])
    assert float(out.state[0].abs().max()) > 0
    torch.testing.assert_close(out.mean + out.state[0], x, rtol=1e-15, atol=0)


@pytest.mark.parametrize("beta", [0.0, -0.1, 1.1, math.nan])
def test_beta_is_checked(beta: float):
    with pytest.raises(ConfigurationError, match=r"ErrorFeedback: beta=.* is out of range; legal: 0 < beta <= 1"):
        ErrorFeedback(TOP1, beta=beta)


@pytest.mark.parametrize("gamma", [0.0, -1.0, math.nan, math.inf])
def test_gamma_is_checked(gamma: float):
    with pytest.raises(ConfigurationError, match=r"ErrorFeedback: gamma=.* is out of range; legal: 0 < gamma < inf"):
        ErrorFeedback(TOP1, gamma=gamma)


@pytest.mark.parametrize("beta", [-0.1, 1.0, math.nan])
def test_momentums_beta_is_checked(beta: float):
    with pytest.raises(ConfigurationError, match=r"Momentum: beta=.* legal: 0 <= beta < 1"):
        Momentum(TOP1, beta=beta)


@pytest.mark.parametrize("make", [ErrorFeedback, Momentum])
def test_a_memory_wraps_a_method(make: Any):
    with pytest.raises(CompositionError, match=r"wraps a Method, got TopK.*put a communicator around"):
        make(TopK())


def test_memories_that_cannot_be_combined():
    with pytest.raises(CompositionError, match="already has a memory"):
        ErrorFeedback(ErrorFeedback(TOP1))
    with pytest.raises(CompositionError, match="put the memory inside"):
        ErrorFeedback(Momentum(TOP1))
    with pytest.raises(CompositionError, match="use efsignsgd"):
        ErrorFeedback(Allgather(grace.SignSGD()))
    with pytest.raises(CompositionError, match="use scale=False with a memory"):
        ErrorFeedback(Allreduce(grace.RandomK(scale=True)))


def test_a_memory_takes_the_variant_whose_error_is_bounded():
    assert ErrorFeedback(Allgather(grace.QSGD())).method == Allgather(grace.QSGD(shrink=True))
    assert ErrorFeedback(Allreduce(grace.RandomK())).method == Allreduce(grace.RandomK(scale=False))


def test_the_gradient_is_lent_as_spare_room():
    """The mean lies in the gradient's own storage where the dtype fits."""
    x = torch.arange(8.0)
    method = ErrorFeedback(TOP1)
    (out,) = simulate([method.exchange(x, method.init(x), Peer(0, 1))])
    assert out.mean.data_ptr() == x.data_ptr()


def test_needs_shape_is_handed_on():
    assert ErrorFeedback(grace.PowerSGD()).needs_shape
    assert not ErrorFeedback(TOP1).needs_shape


def test_facts_and_traffic_are_those_of_what_is_sent():
    like = torch.empty(64, dtype=torch.float16)
    assert ErrorFeedback(TOP1).facts(like) == TOP1.facts(like)
    uncompressed = ErrorFeedback(Allreduce(grace.Identity()))
    sent = uncompressed.traffic(like, Peer(0, 2)).sent  # type: ignore[union-attr]
    assert sent == 4 * 64, "float32, since the memory is"


def memory_of(out: Any) -> Tensor:
    return out.state[0]


def test_a_nan_changes_no_memory_and_the_same_object_comes_back():
    method = ErrorFeedback(TOP1)
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    (out,) = simulate([method.exchange(x.clone(), method.init(x), Peer(0, 1))])
    before = memory_of(out).clone()
    (bad,) = simulate([method.exchange(torch.tensor([1.0, math.nan, 0, 0]), out.state, Peer(0, 1, 1))])
    assert torch.equal(memory_of(bad), before)
    assert memory_of(bad) is memory_of(out), "state is donated, never copied"
