"""Momentum in the memories, through the doors of torch, in real processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import grace
from tests.distributed.ddp_models import Net, batch, weights
from tests.distributed.processes import Pool
from tests.distributed.sharded_models import fully_shard, mesh_of
from tests.distributed.sharded_models import pytestmark as fsdp2

SGD: dict[str, Any] = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}


def through_doors(rank: int, world: int) -> None:
    """Methods that send everything step as SGD with momentum does without Grace: attached, and as a distributed optimizer."""
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


def ones_at(door: str, rank: int, method: str | grace.Policy) -> tuple[float, str]:
    """Distance that a bias has moved, in learning rates, after ten gradients of 1; and its method, as the plan says."""
    torch.manual_seed(7)
    net: nn.Module = nn.Linear(40, 40)
    before = net.bias.detach().clone()  # type: ignore[union-attr]
    if door == "ddp":
        net = DistributedDataParallel(net)
    elif door == "fsdp2":
        fully_shard(net, mesh=mesh_of("fsdp"))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    if door == "optimizer":
        optimizer = grace.DistributedOptimizer(optimizer, method, net.named_parameters())
        handle = optimizer.handle
    else:
        handle = grace.attach(net, method, optimizer=optimizer)
    planned = next(row.method for row in handle.plan() if row.name.endswith("bias"))
    for _ in range(10):
        optimizer.zero_grad()
        (net(torch.ones(1, 40)).sum() * 2 * rank).backward()  # 0 on one rank, 2 on the other
        optimizer.step()
    assert handle.error is None
    handle.detach()
    bias = next(p for name, p in net.named_parameters() if name.endswith("bias"))
    after = bias.full_tensor() if door == "fsdp2" else bias  # type: ignore[operator]
    return float((before - after.detach()).mean()) / 0.01, planned


def small_tensors_at(rank: int, world: int, door: str) -> list[tuple[float, str]]:
    explicit = grace.Policy([("*bias", "none"), ("*", "dgc:ratio=0.1")])
    other = "topk:memory=dgc,momentum=0.5" if door == "fsdp2" else "sketchedsgd:momentum=0.5"  # which cannot scatter
    return [ones_at(door, rank, method) for method in ("dgc:ratio=0.1", other, explicit)]


@pytest.mark.parametrize("door", ["ddp", "optimizer", pytest.param("fsdp2", marks=fsdp2)])
def test_biases_beside_dgc_have_its_momentum(pair: Pool, door: str) -> None:
    """41.38 is what the authors' code moves a bias by: the sum of ``u = 0.9 u + 1`` over ten steps."""
    for moves in pair.run(small_tensors_at, door):
        moved, methods = zip(*moves, strict=True)
        assert moved == pytest.approx((41.3811, 18.0020, 10.0), rel=1e-4)
        assert methods == ("none:memory=dgc", "none:momentum=0.5,memory=dgc", "none")
