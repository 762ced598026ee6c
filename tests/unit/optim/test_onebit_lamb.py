"""1-bit LAMB: the numbers of a hand, and LAMB."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from grace.errors import CompositionError, ConfigurationError
from grace.optim import OneBitLamb
from grace.optim.onebit_adam import ONE_BIT
from grace.optim.onebit_lamb import limit, ratio
from grace.run.options import Options
from tests.unit.optim.workers import ROWS, UNUSED, Workers, everything, flat, loss_of, small


def test_the_numbers_of_a_hand() -> None:
    factor = ratio(torch.tensor([4.0, 1.0]), torch.tensor([1.0, 4.0]), 0.0)
    assert factor == 2.0
    limits = [(float(factor), 1.0, 1.1), (5.0, 3.9, 4.0), (0.1, 0.52, 0.5), (0.1, 1.0, 0.9)]
    for new, last, limited in limits:
        assert float(limit(torch.tensor(new), torch.tensor(last))) == pytest.approx(limited)
    assert ratio(torch.zeros(2), torch.ones(2), 0.0) == ratio(torch.zeros(0), torch.zeros(0), 0.0) == 1.0


class LosesTheFactor(OneBitLamb):
    """Each factor is near 0.7, not near the last."""

    def _compressed_step(self, gradients: Any) -> Any:
        for _, _, _, state in self._each():
            state["factor"].fill_(0.7)
        return (yield from OneBitLamb._compressed_step(self, gradients))


class Unweighted(OneBitLamb):
    """Divides what has come by another weight than it was sent with."""

    def _compressed_step(self, gradients: Any) -> Any:
        run = OneBitLamb._compressed_step(self, gradients)
        op = next(run)
        for _, _, _, state in self._each():
            state["weight"].mul_(2.0)
        try:
            while True:
                op = run.send((yield op))
        except StopIteration as stop:
            for _, _, _, state in self._each():
                state["weight"].div_(2.0)
            return stop.value


def reference(model: nn.Module, gradients: list[Tensor], state: dict[str, Any], freeze: int) -> None:
    """LAMB with decay, and the frozen stage, in float64."""
    lr, beta1, beta2, eps, decay = 0.01, 0.8, 0.95, 1e-3, 0.1
    state["step"] = state.get("step", 0) + 1
    for p, g32 in zip(model.parameters(), gradients, strict=True):
        held = state.setdefault(p, {"m": 0.0, "v": 0.0, "c": None, "factor": 1.0})
        x, g = p.detach().double(), g32.double()
        held["m"] = beta1 * held["m"] + (1 - beta1) * g
        if state["step"] <= freeze:
            held["v"] = beta2 * held["v"] + (1 - beta2) * g * g
            held["fresh"] = held["v"]
            update = held["m"] / (held["v"].sqrt() + eps) + decay * x
            c = float(min(max(x.norm() / update.norm(), 0.01), 10.0)) if x.norm() > 0 else 1.0
            held["c"] = c if held["c"] is None else 0.9 * held["c"] + 0.1 * c
        else:
            live = held["v"] > 0
            held["m"] = torch.where(live, held["m"], 0.0)
            g = torch.where(live, g, 0.0)
            held["fresh"] = beta2 * held["fresh"] + (1 - beta2) * g * g
            factor = float(((held["v"].sqrt() + eps) / (held["fresh"].sqrt() + eps))[live].max())
            factor = min(max(factor, 0.5), 4.0)
            held["factor"] = min(max(factor, held["factor"] * 0.9), held["factor"] * 1.1)
            update = held["m"] / (held["v"].sqrt() + eps) + decay * x
            c = held["c"] * held["factor"]
        p.data = (x - lr * c * update).float()


def is_lamb(make: Callable[..., OneBitLamb], world: int = 2, grown: float = 1.0, steps: int = 16) -> None:
    """``grown``: gradients are so many times as large after the freeze."""
    workers = Workers(
        make,
        world,
        small,
        lr=0.01,
        betas=(0.8, 0.95),
        eps=1e-3,
        weight_decay=0.1,
        freeze_step=8,
        method=everything("none"),
    )
    single, state = small(), dict[str, Any]()
    for step in range(steps):
        scale = grown if step >= 8 else 1.0
        for rank, model in enumerate(workers.models):
            model.zero_grad()
            (scale * loss_of(model, step, rank)).backward()
        workers.step()
        single.zero_grad()
        (scale * torch.stack([loss_of(single, step, rank) for rank in range(world)]).mean()).backward()
        gradients = [p.grad for p in single.parameters() if p.grad is not None]
        reference(single, gradients, state, 8)
        torch.testing.assert_close(flat(workers.models[0]), flat(single), atol=2e-5, rtol=1e-4)
    factors = [float(held["factor"]) for held in workers.optimizers[0].state.values()]
    assert max(factors) > 1.05 if grown == 1 else min(factors) == 0.5
    weights = [float(held["weight"]) for held in workers.optimizers[0].state.values()]
    assert max(weights) > 1.2 * min(weights)


def test_with_an_exact_method_it_is_lamb() -> None:
    is_lamb(OneBitLamb)
    is_lamb(OneBitLamb, grown=5.0)


def unlimited(factor: Tensor, last: Tensor) -> Tensor:
    """As the variances say."""
    return factor


def without_bounds(factor: Tensor, last: Tensor) -> Tensor:
    """Limits the change from step to step alone."""
    return torch.minimum(torch.maximum(factor, last * 0.9), last * 1.1)


def jumps(factor: Tensor, last: Tensor) -> Tensor:
    """Limits the factor alone."""
    return factor.clamp(0.5, 4.0)


@pytest.mark.parametrize("mutant", [unlimited, without_bounds, jumps])
def test_factors_beyond_their_limits_are_caught(
    mutant: Callable[[Tensor, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grace.optim.onebit_lamb.limit", mutant)
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        is_lamb(OneBitLamb, grown=5.0)


@pytest.mark.parametrize("mutant", [LosesTheFactor, Unweighted])
def test_another_lamb_is_caught(mutant: type[OneBitLamb]) -> None:
    with pytest.raises(AssertionError):
        is_lamb(mutant)


def test_momenta_are_one_buffer_of_equal_magnitudes() -> None:
    workers = Workers(OneBitLamb, 2, small, lr=0.01, freeze_step=10, method=everything(ONE_BIT))
    session = workers.optimizers[0].session
    assert [len(group.members) for group in session.groups] == [5]
    workers.train(range(10))
    sizes = [
        float(held["weight"] * held["exp_avg"].square().mean().sqrt()) for held in workers.optimizers[0].state.values()
    ]
    assert sizes == pytest.approx([sizes[0]] * 5, rel=1e-4)
    before = session.stats.traffic.rounds
    workers.train(range(10, 11))
    assert session.stats.traffic.rounds - before == 2


def test_rows_that_nobody_uses_stay() -> None:
    workers = Workers(OneBitLamb, 2, small, lr=0.01, freeze_step=20, method=everything(ONE_BIT))
    start = small().get_parameter("0.weight").detach()[ROWS - UNUSED :]
    workers.train(range(40))
    assert workers.replicas_equal()
    assert torch.equal(workers.models[0].get_parameter("0.weight").detach()[ROWS - UNUSED :], start)


def test_what_cannot_be_one_buffer_is_refused() -> None:
    with pytest.raises(CompositionError, match="needs the shape"):
        OneBitLamb(small().named_parameters(), method="powersgd")
    with pytest.raises(ConfigurationError, match="one tensor"):
        OneBitLamb(small().named_parameters(), options=Options(granularity="bucket"))
