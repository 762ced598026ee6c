"""``grace.attach(model, "auto")`` in real processes: all ranks choose the same, and train the same model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import grace
from grace.auto.explain import Explanation
from grace.errors import ConfigurationError
from tests.distributed.processes import Pool

AUTO = "auto:methods=(topk;qsgd:bits=4)"


def trained(rank: int, world: int, steps: int, door: str) -> dict[str, Any]:
    torch.manual_seed(7)
    net = nn.Sequential(*[nn.Linear(128, 128) for _ in range(4)])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    ddp: nn.Module = net
    if door == "ddp":
        ddp = DistributedDataParallel(net, bucket_cap_mb=0.1)
        handle = grace.attach(ddp, AUTO, optimizer=optimizer)
    else:
        optimizer = grace.DistributedOptimizer(optimizer, AUTO, net.named_parameters(), bucket_mb=0.1)
        handle = optimizer.handle  # type: ignore[attr-defined]
    told: list[dict[str, float]] = []
    handle.log(lambda values, step: told.append(values), every=10)
    draw = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (ddp(torch.randn(8, 128, generator=draw)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    found = handle.explain()  # type: ignore[attr-defined]
    saved = handle.state_dict()
    handle.load_state_dict(saved)
    handle.switch("topk")
    ended = handle.explain().stage  # type: ignore[attr-defined]
    handle.detach()
    weights = torch.cat([p.detach().view(-1) for p in net.parameters()])
    return {
        "weights": weights, "losses": losses, "policy": found.policy, "explained": found.as_dict(), "told": told[-1],
        "ended": ended, "buckets": len(found.buckets), "saved": saved["auto"]["methods"],
    }  # fmt: skip


@pytest.mark.parametrize("door", ["ddp", "optimizer"])
def test_all_ranks_choose_alike_and_stay_replicas(pair: Pool, door: str) -> None:
    one, other = pair.run(trained, 40, door)
    assert torch.equal(one["weights"], other["weights"])
    assert one["policy"] == other["policy"]
    assert one["saved"] == other["saved"]
    assert sum(one["losses"][-5:]) < sum(one["losses"][:5])
    explained = Explanation.read(one["explained"])
    assert explained.stage == "running"
    assert [bucket.method for bucket in explained.buckets] == [
        bucket.method for bucket in Explanation.read(other["explained"]).buckets
    ]
    assert one["buckets"] >= 2
    assert explained.compute is not None
    assert set(explained.spent) >= {"codecs", "link", "holding"}
    assert {"grace/auto/plan", "grace/auto/spent_share"} <= set(one["told"])
    assert one["ended"].startswith("ended: the user has switched to")


def refused(rank: int, world: int) -> str:
    ddp = DistributedDataParallel(nn.Linear(64, 64))
    with pytest.raises(ConfigurationError) as caught:
        grace.attach(ddp, "auto", granularity="model")
    return str(caught.value)


def test_groups_are_refused(pair: Pool) -> None:
    assert all("legal: granularity='parameter'" in text for text in pair.run(refused))


def test_other_models_are_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="DistributedDataParallel"):
        grace.attach(nn.Linear(3, 3), "auto")
