"""Facts that hold of every outer loop, each with defects that it finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from grace.adapters.outer.state import OuterState
from tests.unit.adapters.outer.training import Rank, flat, make_inner, make_model, on_ranks, train

W = 2


# ---- the outer optimizer --------------------------------------------------------------------------------------------
def by_hand(windows: int, every: int, **outer: Any) -> list[Tensor]:
    """theta after each window, with torch's SGD as outer optimizer, on the mean of the pseudo-gradients of two ranks."""
    theta = [p.detach().clone() for p in make_model(1).parameters()]
    sgd = torch.optim.SGD(theta, **outer)
    replicas = [make_model(1) for _ in range(W)]
    inner = [make_inner(net) for net in replicas]
    found = []
    for window in range(windows):
        for rank in range(W):
            train(replicas[rank], inner[rank], rank, range(window * every, (window + 1) * every))
        with torch.no_grad():
            for place, x in enumerate(theta):
                moved = [x - list(net.parameters())[place] for net in replicas]
                x.grad = (moved[0] + moved[1]) / W
            sgd.step()
            for net in replicas:
                for p, x in zip(net.parameters(), theta, strict=True):
                    p.copy_(x)
        found.append(flat(theta))
    return found


def looped(windows: int, every: int, **knobs: Any) -> list[Tensor]:
    def job(network: Any, rank: int) -> list[Tensor]:
        one, found = Rank(network, rank, "none", every=every, **knobs), []
        for window in range(windows):
            one.train(window * every, (window + 1) * every)
            found.append(one.theta)
        return found

    one, other = on_ranks(W, job)
    assert all(torch.equal(x, y) for x, y in zip(one, other, strict=True)), "theta is the same on all ranks"
    return one  # type: ignore[no-any-return]


def test_the_outer_optimizer_is_torchs_sgd_to_the_bit() -> None:
    for nesterov in (True, False):
        knobs = {"lr": 0.7, "momentum": 0.9, "nesterov": nesterov}
        for x, y in zip(looped(4, 3, **knobs), by_hand(4, 3, **knobs), strict=True):
            assert torch.equal(x, y)


def _without_nesterov(state: OuterState, name: str, d: Tensor) -> bool:
    b = state.momentum[name].mul_(0.9).add_(d)
    state.theta[name].sub_(b, alpha=0.7)
    return True


def _momentum_late(state: OuterState, name: str, d: Tensor) -> bool:
    """Steps with the momentum of the window before."""
    state.theta[name].sub_(d + 0.9 * state.momentum[name], alpha=0.7)
    state.momentum[name].mul_(0.9).add_(d)
    return True


def _uphill(state: OuterState, name: str, d: Tensor) -> bool:
    b = state.momentum[name].mul_(0.9).add_(d)
    state.theta[name].add_(d.add(b, alpha=0.9), alpha=0.7)
    return True


def _lr_on_momentum(state: OuterState, name: str, d: Tensor) -> bool:
    b = state.momentum[name].mul_(0.9).add_(d, alpha=0.7)
    state.theta[name].sub_(d * 0.7 + 0.9 * b.mul(1.001))
    return True


@pytest.mark.parametrize("defect", [_without_nesterov, _momentum_late, _uphill, _lr_on_momentum])
def test_that_finds(defect: Callable[..., bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OuterState, "step", defect)
    knobs = {"lr": 0.7, "momentum": 0.9, "nesterov": True}
    assert not torch.equal(looped(3, 3, **knobs)[-1], by_hand(3, 3, **knobs)[-1])
