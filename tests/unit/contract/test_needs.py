"""Needs of methods of the optimizer: how they add up, and that they are true."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import grace
from grace.contract.needs import ACCUMULATES, AVERAGES, LAGS, NOTHING, VOTES, Needs
from grace.registry.policy import Policy
from grace.run.optimizer import Settings, check_optimizer, find_faults, read_settings
from grace.run.simulator import Simulator

WORKERS, SHAPE = 2, (32, 32)


@pytest.mark.parametrize(
    ("spec", "needs"),
    [
        ("topk", NOTHING),
        ("efsignsgd", NOTHING),
        ("signsgd", VOTES),
        ("signsgd:lossless=zlib", VOTES),
        ("signum", VOTES | AVERAGES),
        ("topk:memory=momentum", AVERAGES),
        ("topk:memory=momentum,beta=0", NOTHING),
        ("dgc", ACCUMULATES),
        ("dgc:memory=residual", NOTHING),
        ("dgc:momentum=0", NOTHING),
        ("dgc:start=10", ACCUMULATES),
        ("dgc:ratio=linear(0.2->0.1, 10 steps)", ACCUMULATES),
        ("sketchedsgd", ACCUMULATES),
        ("topk:memory=ef21m", AVERAGES),
        ("topk:memory=ef21m,eta=1", LAGS),
        ("topk:memory=ef21", LAGS),
    ],
)
def test_needs_follow_from_the_layers(spec: str, needs: Needs) -> None:
    declared = grace.method(spec).needs
    assert (declared.momentum, declared.lr_scale, declared.max_lr) == (needs.momentum, needs.lr_scale, needs.max_lr)
    assert bool(declared) == bool(needs)
    assert set(declared.why.split("; ")) == set(needs.why.split("; "))


def test_a_vote_of_ones_own_needs_what_votes_need() -> None:
    class Mine(grace.SignSGD):
        pass

    assert grace.Allgather(Mine()).needs == VOTES


def test_needs_add_up() -> None:
    both = Needs(lr_scale=0.5, why="a") | Needs(momentum=False, lr_scale=0.1, max_lr=1.0, why="b") | Needs(why="a")
    assert both == Needs(momentum=False, lr_scale=0.1, max_lr=1.0, why="a; b")
    assert str(both) == "momentum 0, learning rate x 0.1"
    assert str(NOTHING) == ""


def weights() -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3))]


def test_what_is_read_of_optimizers() -> None:
    first, second = weights()
    groups = [{"params": [first], "lr": 0.5}, {"params": [second], "momentum": 0.3}]
    assert read_settings(torch.optim.SGD(groups, lr=0.1)) == Settings(momentum=0.3, lr=0.5)
    assert read_settings(torch.optim.Adam(weights(), lr=0.1)) == Settings(beta1=0.9)
    assert read_settings(torch.optim.RMSprop(weights(), lr=0.1, momentum=0.9)) == Settings(momentum=0.9)


def test_a_learning_rate_that_a_schedule_has_lowered_counts_at_its_peak() -> None:
    optimizer = torch.optim.SGD(weights(), lr=0.1)
    torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.001)
    assert optimizer.param_groups[0]["lr"] < 0.001
    assert read_settings(optimizer).lr == 0.1


@pytest.mark.parametrize(
    ("spec", "settings", "faults"),
    [
        ("dgc", Settings(0.9, 0.1), ["momentum 0 (it is 0.9)"]),
        (
            "dgc",
            Settings(beta1=0.9),
            ["SGD without momentum (this one averages gradients, with beta1 0.9"],
        ),
        ("dgc:momentum=0", Settings(beta1=0.9), []),
        ("topk:memory=ef21", Settings(0.9, 0.1), ["momentum 0 (it is 0.9)"]),
        ("dgc", Settings(0.0, 0.1), []),
        ("dgc", Settings(), []),
        ("signsgd", Settings(0.0, 0.002), []),
        ("signsgd", Settings(0.0, 0.1), ["a learning rate of at most 0.01 (it is 0.1); 0.02 times"]),
        ("signum", Settings(0.9, 0.1), ["momentum 0", "a learning rate"]),
        ("topk", Settings(0.9, 10.0), []),
    ],
)
def test_what_is_wrong_is_said_with_what_to_set(spec: str, settings: Settings, faults: list[str]) -> None:
    faults_found = find_faults(grace.method(spec).needs, settings)
    assert len(faults_found) == len(faults)
    assert all(text.startswith(start) for text, start in zip(faults_found, faults, strict=True))


def test_only_methods_in_use_are_warned_of() -> None:
    policy = Policy([("head", "dgc"), ("*", "topk")], strict=False)
    check_optimizer(policy, {"body": torch.empty(9, 9)}, None)
    with pytest.warns(
        grace.OptimizerWarning, match=r"^dgc needs of the optimizer: momentum 0, SGD, because .*; give optimizer="
    ) as caught:
        check_optimizer(policy, {"body": torch.empty(9, 9), "head": torch.empty(9, 9)}, None)
    assert caught[0].filename == __file__


def test_small_tensors_beside_a_method_are_not_warned_of_again() -> None:
    tensors = {"bias": torch.empty(9), "body": torch.empty(64, 64)}
    with pytest.warns(grace.OptimizerWarning, match=r"^dgc:momentum=0.8 needs of the optimizer: momentum 0") as caught:
        check_optimizer(Policy.of("dgc:momentum=0.8"), tensors, Settings(0.9, 0.1))
    assert len(caught) == 1
    with pytest.warns(grace.OptimizerWarning, match=r"^none:memory=dgc needs of the optimizer: momentum 0") as caught:
        check_optimizer(Policy.of("dgc"), {"bias": torch.empty(9)}, Settings(0.9, 0.1))  # nothing else is there
    assert len(caught) == 1


# ---- that what is declared is true ----------------------------------------------------------------------------------
def distance(spec: str, momentum: float, lr: float = 0.03, steps: int = 120) -> float:
    """Squared distance to the minimum of a least-squares problem with curvatures from 1 to 4, relative to the start."""
    made = torch.Generator().manual_seed(3)
    curvatures = [1 + 3 * torch.rand(SHAPE, generator=made) for _ in range(WORKERS)]
    best, x = torch.randn(SHAPE, generator=made), nn.Parameter(torch.zeros(SHAPE))
    optimizer, simulator = torch.optim.SGD([x], lr=lr, momentum=momentum), Simulator(Policy([("*", spec)]), WORKERS)
    for _ in range(steps):
        x.grad = simulator.step({"x": [a * (x.detach() - best) for a in curvatures]})["x"]
        optimizer.step()
    return float((x.detach() - best).square().sum() / best.square().sum())


@pytest.mark.parametrize(
    "spec",
    [
        "none:memory=dgc",
        "dgc:ratio=0.1",
        "sketchedsgd:ratio=0.3",
        "qsgd:memory=momentum",
        "topk:ratio=0.3,memory=ef21m",
    ],
)
def test_a_second_momentum_diverges_and_none_converges(spec: str) -> None:
    assert not grace.method(spec).needs.momentum
    assert distance(spec, momentum=0.0) < 1e-3
    assert not distance(spec, momentum=0.9) < 1


def test_no_momentum_is_asked_for_without_a_reason() -> None:
    assert grace.method("none").needs.momentum
    assert distance("none", momentum=0.9) < 1e-3


def loss(spec: str, lr: float, momentum: float) -> float:
    """Cross-entropy of a small network after 60 steps, from 2.3 at the start."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    x = torch.randn(256, 64)
    y = (x @ torch.randn(64, 10)).argmax(dim=1)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=momentum)
    simulator, named = Simulator(spec, WORKERS), dict(net.named_parameters())
    last = math.inf
    for _ in range(60):
        parts = [
            nn.functional.cross_entropy(net(a), b) for a, b in zip(x.chunk(WORKERS), y.chunk(WORKERS), strict=True)
        ]
        gradients = [torch.autograd.grad(part, list(named.values())) for part in parts]
        for name, mean in simulator.step(
            dict(zip(named, map(list, zip(*gradients, strict=True)), strict=True))
        ).items():
            named[name].grad = mean
        optimizer.step()
        last = float(sum(part.detach() for part in parts)) / WORKERS
    return last


@pytest.mark.parametrize("spec", ["signsgd", "signum"])
def test_votes_learn_with_the_factor_and_not_without(spec: str) -> None:
    scale = grace.method(spec).needs.lr_scale
    assert loss(spec, 0.1 * scale, momentum=0.0) < 1.5
    assert not loss(spec, 0.1, momentum=0.9) < 2
