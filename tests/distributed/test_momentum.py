"""Momentum in the memories, through the doors of torch, in real processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import grace
from tests.distributed.ddp_models import Net, batch, weights
from tests.distributed.processes import Pool

SGD: dict[str, Any] = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}


def through_doors(rank: int, world: int) -> None:
    """What sends all steps as SGD with momentum does without Grace: attached, and as a distributed optimizer."""
    ends = []
    for door in ("alone", "attach", "optimizer"):
        torch.manual_seed(7)
        net: nn.Module = Net()
        if door != "optimizer":
            net = DistributedDataParallel(net)
        optimizer = torch.optim.SGD(net.parameters(), **SGD)
        handle = None
        if door != "alone":
            policy = grace.momentum_in_memory(optimizer, grace.Policy([("*", "topk:ratio=1")]))
            if door == "attach":
                handle = grace.attach(net, policy, optimizer=optimizer)
            else:
                optimizer = grace.DistributedOptimizer(optimizer, policy, net.named_parameters())
                handle = optimizer.handle
        for step in range(6):
            x, y = batch(rank, step, torch.float32)
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        ends.append(weights(net))
        if handle is not None:
            assert handle.error is None
            handle.detach()
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0], rtol=1e-4, atol=1e-6)


def test_both_doors_step_as_sgd_with_momentum(pair: Pool) -> None:
    pair.run(through_doors)
