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
    explained = handle.explain()  # type: ignore[attr-defined]
    saved = handle.state_dict()
    handle.load_state_dict(saved)
    handle.switch("topk")
    ended = handle.explain().stage  # type: ignore[attr-defined]
    handle.detach()
    weights = torch.cat([p.detach().view(-1) for p in net.parameters()])
    return {
        "weights": weights, "losses": losses, "policy": explained.policy, "explained": explained.as_dict(), "told": told[-1],
        "ended": ended, "buckets": len(explained.buckets), "saved": saved["auto"]["methods"],
    }  # fmt: skip


@pytest.mark.parametrize("door", ["ddp", "optimizer"])
def test_all_ranks_choose_alike_and_stay_replicas(pair: Pool, door: str) -> None:
    first, second = pair.run(trained, 40, door)
    assert torch.equal(first["weights"], second["weights"])
    assert first["policy"] == second["policy"]
    assert first["saved"] == second["saved"]
    assert sum(first["losses"][-5:]) < sum(first["losses"][:5])
    decoded = Explanation.read(first["explained"])
    assert decoded.stage == "running"
    assert [bucket.method for bucket in decoded.buckets] == [
        bucket.method for bucket in Explanation.read(second["explained"]).buckets
    ]
    assert first["buckets"] >= 2
    assert decoded.compute is not None
    assert set(decoded.spent) >= {"codecs", "link", "holding"}
    assert {"grace/auto/plan", "grace/auto/spent_share"} <= set(first["told"])
    assert first["ended"].startswith("ended: the user has switched to")


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
    explained = handle.explain()  # type: ignore[attr-defined]
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
        "applied": applied, "computed": computed, "explained": explained.as_dict(), "saved": saved["auto"]["methods"],
        "left": left, "policy": explained.policy,
    }  # fmt: skip


@sharded_models.pytestmark
def test_a_sharded_model_gets_all_that_was_computed(pair: Pool) -> None:
    first, second = pair.run(sharded, 40)
    assert first["policy"] == second["policy"]
    assert first["saved"] == second["saved"]
    assert first["saved"]["short"] == "none"
    for name, x in first["computed"].items():
        torch.testing.assert_close(
            first["applied"][name], x, atol=0.05 * (name == "wide") + 1e-4, rtol=0
        )  # bf16 rounds
    assert first["left"] == second["left"] == 0
    decoded = Explanation.read(first["explained"])
    assert decoded.stage == "running"
    assert decoded.buckets[0].tensors == ("wide", "short")
    assert decoded.compute is not None
    assert any("ReduceScatter" in text and "AllToAll" in text for _, text in decoded.events)
    assert "no reduce-scatter" in decoded.left_out["powersgd"]


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
    explained = handle.explain()
    assert isinstance(explained, Explanation)
    saved = handle.state_dict()
    handle.load_state_dict(saved)
    handle.sync()
    weights = torch.cat([p.detach().view(-1) for p in net.parameters()])
    handle.detach()
    return {
        "weights": weights, "losses": losses, "policy": explained.policy, "stage": explained.stage, "text": str(explained),
        "saved": saved["auto"]["methods"],
    }  # fmt: skip


def test_local_steps_choose_by_rounds(pair: Pool) -> None:
    first, second = pair.run(local_steps, 25)
    assert torch.equal(first["weights"], second["weights"])
    assert (first["policy"], first["saved"]) == (second["policy"], second["saved"])
    assert sum(first["losses"][-5:]) < sum(first["losses"][:5])
    assert first["stage"] == "running"
    assert "a step here is a round: 2 local steps and their exchange" in first["text"]


def between_replicas(rank: int, world: int, steps: int, shard: str | None) -> dict[str, Any]:
    net = sharded_models.make("hsdp")  # of whose head some ranks have no part
    handle = grace.attach(net, replicate=AUTO, shard=shard)
    weights = sharded_models.train(net, steps)
    saved = handle.state_dict()
    handle.load_state_dict(saved)
    weights = sharded_models.train(net, 8, from_step=steps)
    explained = handle.explain()  # type: ignore[attr-defined]
    handle.detach()
    assert "4 workers, 2 replicas of 2 shards, over" in str(explained)
    methods = [bucket.method for bucket in explained.buckets]
    return {"weights": weights, "methods": methods, "history": explained.history, "stage": explained.stage}


@pytest.mark.night("lines that decide alone")
@sharded_models.pytestmark
@pytest.mark.parametrize("shard", [None, "bf16"])
def test_replicas_of_all_shards_choose_alike(four: Pool, shard: str | None) -> None:
    results = four.run(between_replicas, 40, shard)
    for result in results[1:]:
        assert result["history"] == results[0]["history"]
        assert result["methods"] == results[0]["methods"]
        assert result["stage"] == "running"
    assert len(results[0]["methods"]) == 4
    for first, second in ((0, 2), (1, 3)):
        assert torch.equal(results[first]["weights"], results[second]["weights"])
