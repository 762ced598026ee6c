"""Every door of torch tells, on rank 0 and once, of a training that drifts apart."""

from __future__ import annotations

import warnings
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import grace
from grace.errors import DivergenceWarning
from grace.run import watch
from tests.distributed.processes import Pool


def train_at(rank: int, world: int, door: str) -> int:
    """Number of warnings that a training diverges, by a watch that warns at once."""
    torch.manual_seed(7)
    net: nn.Module = nn.Linear(64, 64)
    net = DistributedDataParallel(net) if door == "attach" else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if door == "attach":
            handle = grace.attach(net, "topk:ratio=0.1", optimizer=optimizer)
        elif door == "optimizer":
            optimizer = grace.DistributedOptimizer(optimizer, "topk:ratio=0.1", net.named_parameters())
            handle = optimizer.handle
        else:
            handle = grace.local(net, optimizer, "topk:ratio=0.1", every=1)
        with (
            mock.patch.object(watch.DebtWatch, "_grows", return_value=True),
            mock.patch.object(watch, "WINDOW", 1),
            mock.patch.object(watch, "IN_A_ROW", 1),
        ):
            for _ in range(5):
                optimizer.zero_grad()
                net(torch.randn(4, 64)).square().mean().backward()
                optimizer.step()
            handle.detach()
    return sum(issubclass(warning.category, DivergenceWarning) for warning in told)


@pytest.mark.parametrize("door", ["attach", "optimizer", "local"])
def test_each_door_tells_once_on_rank_0(pair: Pool, door: str) -> None:
    assert pair.run(train_at, door) == [1, 0]
