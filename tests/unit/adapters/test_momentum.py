"""An optimizer whose momentum is in the memories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import grace
from grace.errors import ConfigurationError, StateError

SGD: dict[str, Any] = {"lr": 0.05, "momentum": 0.9}


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, mean: Callable[[dict[str, Tensor]], Any], steps: range
) -> None:
    """Steps of two workers whose gradients ``mean`` averages: by name, those of both."""
    for step in steps:
        gradients: dict[str, list[Tensor]] = {name: [] for name, _ in model.named_parameters()}
        for rank in range(2):
            x = torch.randn(8, 12, generator=torch.Generator().manual_seed(10 * step + rank))
            model.zero_grad()
            model(x).square().mean().backward()
            for name, p in model.named_parameters():
                gradients[name].append(p.grad.clone())  # type: ignore[union-attr]
        means = mean(gradients)
        for name, p in model.named_parameters():
            p.grad = means[name].clone()
        optimizer.step()


def plain(gradients: dict[str, list[Tensor]]) -> dict[str, Tensor]:
    return {name: sum(xs) / 2 for name, xs in gradients.items()}  # type: ignore[misc]


def simulated(method: grace.Policy) -> Callable[[dict[str, list[Tensor]]], Any]:
    return grace.Simulator(method, 2).step


def make(**knobs: Any) -> tuple[nn.Module, torch.optim.SGD]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 40), nn.Tanh(), nn.Linear(40, 30))
    return model, torch.optim.SGD(model.parameters(), **{**SGD, **knobs})


def assert_same(a: nn.Module, b: nn.Module) -> None:
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "knobs",
    [{}, {"nesterov": True}, {"weight_decay": 0.05}, {"weight_decay": 0.05, "nesterov": True, "foreach": False},
     {"weight_decay": 0.05, "maximize": True, "lr": 0.002}],
)  # fmt: skip
@pytest.mark.parametrize("method", ["none", "topk:ratio=1"])
def test_what_sends_all_steps_as_sgd_with_momentum_does(method: str, knobs: dict[str, Any]) -> None:
    expected, optimizer = make(**knobs)
    train(expected, optimizer, plain, range(12))
    model, optimizer = make(**knobs)
    train(model, optimizer, simulated(grace.momentum_in_memory(optimizer, method)), range(12))
    assert_same(model, expected)


def test_the_velocity_that_the_optimizer_had_goes_on() -> None:
    expected, optimizer = make(weight_decay=0.05)
    train(expected, optimizer, plain, range(12))
    model, optimizer = make(weight_decay=0.05)
    train(model, optimizer, plain, range(5))
    train(model, optimizer, simulated(grace.momentum_in_memory(optimizer, "none")), range(5, 12))
    assert_same(model, expected)


def test_a_sparsifier_forgets_the_velocity_of_what_it_sent_and_others_keep_theirs() -> None:
    def text(method: str) -> str:
        return grace.spell(grace.momentum_in_memory(make(momentum=0.8, nesterov=True)[1], method).rules[-1].method)

    assert text("topk:ratio=0.02") == "topk:ratio=0.02,momentum=0.8,nesterov=true,memory=dgc"
    assert text("efsignsgd") == "efsignsgd:momentum=0.8,nesterov=true,masking=false,memory=dgc"
    assert text("none") == "none:momentum=0.8,nesterov=true,memory=dgc"


@pytest.mark.parametrize(
    ("method", "texts"),
    [
        ("topk", {"none:momentum=0.8,memory=dgc", "topk:momentum=0.8,memory=dgc"}),
        ("dgc", {"none:momentum=0.8,memory=dgc", "dgc:momentum=0.8"}),
        ("sketchedsgd:momentum=0.5,clip=2", {"none:momentum=0.8,clip=2,memory=dgc", "sketchedsgd:momentum=0.8,clip=2"}),
    ],
)
def test_small_tensors_get_the_same_momentum(method: str, texts: set[str]) -> None:
    policy = grace.momentum_in_memory(make(momentum=0.8)[1], method)
    assert {grace.spell(rule.method) for rule in policy.rules} == texts  # type: ignore[arg-type]


def test_the_checkpoint_says_what_the_optimizer_had() -> None:
    model, optimizer = make(weight_decay=0.05, nesterov=True)
    before = optimizer.state_dict()["param_groups"]
    policy = grace.momentum_in_memory(optimizer, "topk:ratio=0.1")
    train(model, optimizer, simulated(policy), range(2))
    saved = optimizer.state_dict()
    assert saved["param_groups"] == before
    other, alone = make()
    alone.load_state_dict(saved)
    train(other, alone, plain, range(2))  # in a run without Grace

    optimizer.load_state_dict(alone.state_dict())
    assert optimizer.param_groups[0]["momentum"] == optimizer.param_groups[0]["weight_decay"] == 0
    assert optimizer.state_dict()["param_groups"] == before


def test_a_checkpoint_of_another_momentum_is_refused() -> None:
    _, optimizer = make()
    grace.momentum_in_memory(optimizer, "topk")
    with pytest.raises(StateError, match=r"momenta \[0.5\], and the memories have 0.9"):
        optimizer.load_state_dict(make(momentum=0.5)[1].state_dict())


def test_a_memory_in_the_recommended_way_needs_nothing_of_the_optimizer(recwarn: pytest.WarningsRecorder) -> None:
    _, optimizer = make()
    policy = grace.momentum_in_memory(optimizer, "topk")
    settings = grace.run.optimizer.read_settings(optimizer)
    grace.run.optimizer.check_optimizer(policy, {"w": torch.zeros(64, 64)}, settings)
    assert not recwarn.list


@pytest.mark.parametrize(
    ("knobs", "method", "words"),
    [
        ({"momentum": 0}, "topk", "momentum 0, or has given it away"),
        ({"dampening": 0.1}, "topk", "dampening=0"),
        ({}, "topk:memory=ef21", "memory=residual"),
        ({}, "qsgd:bits=4", "leave it in the optimizer"),
        ({}, "topk:start=5", "leave it in the optimizer"),
        ({}, "topk:beta=0.9", "leave it in the optimizer"),
        ({}, "signsgd", "leave it in the optimizer"),
    ],
)
def test_what_cannot_move_is_refused(knobs: dict[str, Any], method: str, words: str) -> None:
    _, optimizer = make(**knobs)
    before = optimizer.state_dict()
    with pytest.raises(ConfigurationError, match=words):
        grace.momentum_in_memory(optimizer, method)
    assert optimizer.state_dict() == before


def test_other_optimizers_and_several_momenta_are_refused() -> None:
    model, optimizer = make()
    with pytest.raises(ConfigurationError, match=r"Adam; legal: torch\.optim\.SGD"):
        grace.momentum_in_memory(torch.optim.Adam(model.parameters()), "topk")
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))], "momentum": 0.5})
    with pytest.raises(ConfigurationError, match=r"momenta \[0.5, 0.9\]"):
        grace.momentum_in_memory(optimizer, "topk")
    _, optimizer = make()
    grace.momentum_in_memory(optimizer, "topk")
    with pytest.raises(ConfigurationError, match="given it away"):
        grace.momentum_in_memory(optimizer, "topk")
