"""The distributed optimizer's names, buckets and refusals, in one process."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import nn

import grace
from grace.adapters.trained import name_trained
from grace.errors import ConfigurationError, GraceError


def make(**options: Any) -> Any:
    net = nn.Linear(40, 40)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return grace.DistributedOptimizer(optimizer, "topk", net.named_parameters(), transport="alone", **options)


def test_names() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    part = torch.optim.SGD(net[1].parameters(), lr=0.1)
    assert list(name_trained(part, net.named_parameters())) == ["1.weight", "1.bias"]
    assert list(name_trained(part)) == ["group0.0", "group0.1"]
    assert list(name_trained(torch.optim.SGD(net.named_parameters(), lr=0.1)))[:2] == ["0.weight", "0.bias"]
    tied = [("a", net[0].weight), ("b", net[0].weight)]
    assert list(name_trained(torch.optim.SGD([net[0].weight], lr=0.1), tied)) == ["a"]


def test_what_has_no_name_or_the_name_of_another() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(ConfigurationError, match=r"trains 2 parameters .* of shapes \(2, 2\), \(2,\)"):
        name_trained(optimizer, net[0].named_parameters())
    with pytest.raises(ConfigurationError, match="two parameters with the name 'weight'"):
        name_trained(optimizer, [*net[0].named_parameters(), *net[1].named_parameters()])
    with pytest.raises(ConfigurationError, match="pairs of a name and a tensor"):
        name_trained(optimizer, net.parameters())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="trains no parameter"):
        name_trained(torch.optim.SGD([torch.zeros(2)], lr=0.1))
    with pytest.raises(ConfigurationError, match=r"legal: a torch\.optim\.Optimizer"):
        name_trained(net)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("knob", "value"),
    [("bucket_mb", 0), ("bucket_mb", "25"), ("backward_passes_per_step", 0), ("backward_passes_per_step", 1.5)],
)
def test_knobs_out_of_range(knob: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"{knob}=.*legal"):
        make(**{knob: value})
    if knob == "backward_passes_per_step":
        optimizer = make()
        with pytest.raises(ConfigurationError, match=f"{knob}=.*legal"):
            optimizer.set_backward_passes_per_step(value)


def test_alone_it_is_the_optimizer_and_once_detached_it_is_plain() -> None:
    optimizer = make()
    with pytest.raises(ConfigurationError, match="distributed already"):
        grace.DistributedOptimizer(optimizer, "topk")
    with pytest.raises(GraceError, match="neither copied nor pickled"):
        pickle.dumps(optimizer)
    (weight, bias) = optimizer.param_groups[0]["params"]
    before = weight.detach().clone()
    (weight.sum() + bias.sum()).backward()
    optimizer.step()
    assert int((weight != before).sum()) == 16  # 1 % of 1,600
    (weight.sum() + bias.sum()).backward()
    optimizer.handle.detach()
    assert type(optimizer) is torch.optim.SGD
    assert type(weight.grad) is torch.Tensor
    pickle.dumps(optimizer)
    weight.sum().backward()
    optimizer.step()


def test_two_over_the_same_parameters() -> None:
    """In the constructor: what came later named another cause."""
    net = nn.Linear(40, 40)

    def distribute() -> Any:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        return grace.DistributedOptimizer(optimizer, "topk", net.named_parameters(), transport="alone")

    first = distribute()
    with pytest.raises(
        ConfigurationError, match=r"'weight' is trained by a grace\.DistributedOptimizer.*Use one of the two"
    ):
        distribute()
    first.handle.detach()
    distribute()  # nothing was held by the one that was refused
    distribute()  # nor by one that was dropped


def synchronized() -> tuple[nn.Module, Any]:
    net = nn.Linear(40, 40)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer = grace.DistributedOptimizer(optimizer, "topk", net.named_parameters(), transport="alone")
    net(torch.ones(1, 40)).sum().backward()
    optimizer.synchronize()
    return net, optimizer


def test_means_that_the_model_has_dropped_are_no_longer_there() -> None:
    """Other ranks are in the next step then: whoever has no data there takes part with zeros, or is told."""
    net, optimizer = synchronized()
    optimizer.synchronize()  # once more changes nothing
    assert optimizer.handle.stats.steps == 1
    net.zero_grad()
    optimizer.synchronize()
    assert optimizer.handle.stats.steps == 2
    optimizer.step()
    net, optimizer = synchronized()
    net.zero_grad()
    with pytest.raises(GraceError, match=r"step\(\) without backward\(\)"):
        optimizer.step()
