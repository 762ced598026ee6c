"""A training that drifts apart is told so, early; healthy ones are not."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import grace
from grace.errors import DivergenceWarning
from grace.run.session import Session
from grace.run.steps import Steps
from grace.run.watch import WINDOW, DebtWatch
from grace.transports.alone import Alone


def perceptron(spec: str, momentum: float, seed: int, steps: int = 260) -> tuple[int | None, list[float]]:
    """Steps at which the watch of rank 0 of two warns, and the losses."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    teacher, optimizer = torch.randn(64, 10), torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    data = [torch.Generator().manual_seed(100 * seed + rank) for rank in range(2)]
    simulator, losses = grace.Simulator(spec, 2), []
    for step in range(steps):
        gradients: dict[str, list[torch.Tensor]] = {name: [] for name, _ in model.named_parameters()}
        total = 0.0
        for source in data:
            x = torch.randn(32, 64, generator=source)
            loss = nn.functional.cross_entropy(model(x), (x @ teacher).argmax(1))
            model.zero_grad()
            loss.backward()
            total += loss.item() / 2
            for name, p in model.named_parameters():
                assert p.grad is not None
                gradients[name].append(p.grad.clone())
        losses.append(total)
        for name, mean in simulator.step(gradients).items():
            model.get_parameter(name).grad = mean
        optimizer.step()
        if simulator.workers[0].watch.diverging:
            return step, losses
    return None, losses


def smooth(losses: list[float]) -> list[float]:
    return [sum(losses[i : i + 20]) / 20 for i in range(0, len(losses) - 19, 20)]


@pytest.mark.parametrize("seed", [0, 1])
def test_randomk_under_momentum_is_told_before_its_loss_has_doubled(seed: int) -> None:
    told, losses = perceptron("randomk:ratio=0.01", 0.9, seed)
    assert told is not None
    assert smooth(losses)[-1] < 2 * min(smooth(losses))


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4])
def test_topk_under_momentum_is_told_before_its_loss_has_doubled(seed: int) -> None:
    told, losses = perceptron("topk:ratio=0.01", 0.9, seed)
    assert told is not None
    assert smooth(losses)[-1] < 2 * min(smooth(losses))


@pytest.mark.parametrize(
    ("spec", "momentum"),
    [("topk:ratio=0.05", 0.9), ("efsignsgd", 0.9), ("topk:ratio=0.01", 0.0), ("randomk:ratio=0.01", 0.0)],
)
def test_what_learns_is_left_alone(spec: str, momentum: float) -> None:
    assert perceptron(spec, momentum, 0)[0] is None


def fed(values: list[tuple[float, float]]) -> bool:
    watch = DebtWatch()
    for debt, gradient in values:
        for _ in range(WINDOW):
            watch.add(debt, gradient)
    return watch.diverging


def test_both_have_to_grow() -> None:
    rising = [1.3**k for k in range(16)]
    assert fed([(x, x) for x in rising])
    assert not fed([(x, 1.0) for x in rising]), "a memory fills"
    assert not fed([(1.0, x) for x in rising]), "gradients grow for reasons of their own"
    assert not fed([(x, x) for x in rising[:9]]), "in the beginning everything grows"
    assert not fed([(x, x) for x in [1.0, *(0.5 + k / 5 for k in range(24))]]), "a network begins to learn"
    assert not fed([(1, 1)] * 8 + [(4, 4), (4, 4), (1, 1)] * 3), "two windows may be chance"


def test_it_looks_at_the_largest_tensors_with_a_memory() -> None:
    watch, x = DebtWatch(), torch.ones(8)
    for _ in range(WINDOW + 1):
        for name, size in (("a", 4), ("b", 8), ("c", 6)):
            watch.see(name, x[:size] * 2, x[:size])
        watch.end_step()
    assert watch._watched == {"b", "c"}
    assert watch._gradients == pytest.approx([(8 + 6) ** 0.5])
    assert watch._debts == pytest.approx([2 * (8 + 6) ** 0.5])


def test_rank_0_is_warned_once() -> None:
    session = Session({"w": torch.ones(64, 64)}, "topk:ratio=0.1", Alone())
    training = Steps(session)

    def steps(diverging: bool) -> None:
        for _ in range(3):
            session.worker.watch.diverging = diverging
            training.step({"w": torch.ones(64, 64)})
            session.logs.report()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps(False)
    with pytest.warns(DivergenceWarning, match=r"at step 4 .* lower learning rate") as told:
        steps(True)
    assert len(told) == 1
    session.close()
