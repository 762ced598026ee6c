"""The learning rate and the epoch reach memories and schedules through the adapter, in real processes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import grace
from grace.errors import ConfigurationError
from tests.distributed.ddp_models import assert_replicas_agree, batch, model
from tests.distributed.processes import Pool

SPECS = [
    "efsignsgd:communicator=scatterreduce,server_memory=true,memory=distef,follow_lr=true",
    "topk:ratio=warmup(0.5->0.01, 3 epochs),follow_lr=true,start=1",
    "topk:memory=ef21m",
    "qsgd:levels=linear(127->7, 5 steps),communicator=parameterserver,server_memory=true",
]


def trains(rank: int, world: int, spec: str, told: bool) -> list[float]:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    handle = grace.attach(net, spec, check=True, steps_per_epoch=2, optimizer=None if told else optimizer)
    rates = []
    for step in range(6):
        x, y = batch(rank, step)
        optimizer.zero_grad()
        if told:
            handle.lr = schedule.get_last_lr()[0]
        nn.functional.cross_entropy(net(x), y).backward()
        rates.append(handle.lr)
        optimizer.step()
        schedule.step()
    assert_replicas_agree(net, world)
    handle.detach()
    return [*rates, float(next(net.parameters()).sum())]


@pytest.mark.parametrize("spec", SPECS)
def test_replicas_agree_and_both_ways_of_telling_are_one(pair: Pool, spec: str) -> None:
    by_hand, by_optimizer = pair.run(trains, spec, True), pair.run(trains, spec, False)
    assert by_hand == by_optimizer
    assert by_hand[0][:6] == pytest.approx([0.05, 0.05, 0.025, 0.025, 0.0125, 0.0125])


def untold(rank: int, world: int) -> None:
    net = model()
    with pytest.raises(ConfigurationError, match="steps_per_epoch"):
        grace.attach(net, "topk:ratio=warmup(0.5->0.01, 3 epochs)")
    handle = grace.attach(net, "topk:follow_lr=true")
    with pytest.raises(ConfigurationError, match="learning rate"):
        net(batch(rank, 0)[0]).sum().backward()
    handle.detach()


def test_what_nobody_says_is_an_error(pair: Pool) -> None:
    pair.run(untold)
