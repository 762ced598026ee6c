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
from grace.run.parked import INSTALMENTS
from tests.distributed import sharded_models
from tests.distributed.processes import Pool
from tests.distributed.sharded_models import Given, four, gradients_of, mesh_of

__all__ = ["four"]

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


def sharded(rank: int, world: int, steps: int) -> dict[str, Any]:
    """Trains a model under fully_shard whose gradients are given, so that what was computed is known."""
    net = Given()
    sharded_models.fully_shard(net, mesh=mesh_of("fsdp"))
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    handle = grace.attach(net, "auto:methods=(topk;powersgd),keep=(short=none)", optimizer=optimizer)
    saved: dict[str, Any] = {}
    more = INSTALMENTS + 1  # until all is paid that was owed when the state was loaded
    for step in range(steps):
        if step == steps // 2:
            saved = handle.state_dict()
            handle.load_state_dict(saved)
        optimizer.zero_grad()
        net(gradients_of(rank, step)).backward()
        optimizer.step()
    found = handle.explain()  # type: ignore[attr-defined]
    handle.switch("none")
    for step in range(steps, steps + more):
        optimizer.zero_grad()
        net(gradients_of(rank, step)).backward()
        optimizer.step()
    left = handle._session.worker.memory_norm()
    handle.detach()
    computed = {
        name: sum(gradients_of(r, step)[name] for r in range(world) for step in range(steps + more)) / world
        for name in ("wide", "short")
    }
    applied = {name: -p.detach().full_tensor() for name, p in net.named_parameters()}
    return {
        "applied": applied, "computed": computed, "explained": found.as_dict(), "saved": saved["auto"]["methods"],
        "left": left, "policy": found.policy,
    }  # fmt: skip


@sharded_models.pytestmark
def test_a_sharded_model_gets_all_that_was_computed(pair: Pool) -> None:
    one, other = pair.run(sharded, 40)
    assert one["policy"] == other["policy"]
    assert one["saved"] == other["saved"]
    assert one["saved"]["short"] == "none"
    for name, x in one["computed"].items():
        torch.testing.assert_close(one["applied"][name], x, atol=0.05 * (name == "wide") + 1e-4, rtol=0)  # bf16 rounds
    assert one["left"] == other["left"] == 0
    explained = Explanation.read(one["explained"])
    assert explained.stage == "running"
    assert explained.buckets[0].tensors == ("wide", "short")
    assert explained.compute is not None
    assert any("ReduceScatter" in text and "AllToAll" in text for _, text in explained.events)
    assert "no reduce-scatter" in explained.left_out["powersgd"]


def local_steps(rank: int, world: int, rounds: int) -> dict[str, Any]:
    torch.manual_seed(rank)  # it starts with rank 0's
    net = nn.Sequential(*[nn.Linear(128, 128) for _ in range(3)])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    handle = grace.local(net, optimizer, AUTO, every=2, warmup_steps=3)
    draw = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(2 * rounds + 1):
        optimizer.zero_grad()
        loss = (net(torch.randn(8, 128, generator=draw)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    found = handle.explain()
    assert isinstance(found, Explanation)
    saved = handle.state_dict()
    handle.load_state_dict(saved)
    handle.sync()
    weights = torch.cat([p.detach().view(-1) for p in net.parameters()])
    handle.detach()
    return {
        "weights": weights, "losses": losses, "policy": found.policy, "stage": found.stage, "text": str(found),
        "saved": saved["auto"]["methods"],
    }  # fmt: skip


def test_local_steps_choose_by_rounds(pair: Pool) -> None:
    one, other = pair.run(local_steps, 25)
    assert torch.equal(one["weights"], other["weights"])
    assert (one["policy"], one["saved"]) == (other["policy"], other["saved"])
    assert sum(one["losses"][-5:]) < sum(one["losses"][:5])
    assert one["stage"] == "running"
    assert "a step here is a round: 2 local steps and their exchange" in one["text"]


def between_replicas(rank: int, world: int, steps: int, shard: str | None) -> dict[str, Any]:
    net = sharded_models.make("hsdp")  # of whose head some ranks have no part
    handle = grace.attach(net, replicate=AUTO, shard=shard)
    weights = sharded_models.train(net, steps)
    saved = handle.state_dict()
    handle.load_state_dict(saved)
    weights = sharded_models.train(net, 8, from_step=steps)
    found = handle.explain()  # type: ignore[attr-defined]
    handle.detach()
    assert "4 workers, 2 replicas of 2 shards, over" in str(found)
    methods = [bucket.method for bucket in found.buckets]
    return {"weights": weights, "methods": methods, "history": found.history, "stage": found.stage}


@pytest.mark.night("lines that decide alone")
@sharded_models.pytestmark
@pytest.mark.parametrize("shard", [None, "bf16"])
def test_replicas_of_all_shards_choose_alike(four: Pool, shard: str | None) -> None:
    found = four.run(between_replicas, 40, shard)
    for one in found[1:]:
        assert one["history"] == found[0]["history"]
        assert one["methods"] == found[0]["methods"]
        assert one["stage"] == "running"
    assert len(found[0]["methods"]) == 4
    for one, other in ((0, 2), (1, 3)):
        assert torch.equal(found[one]["weights"], found[other]["weights"])
