"""The adapter for DistributedDataParallel, in real processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import grace
from tests.distributed.ddp_models import assert_replicas_agree, batch, model, train, weights
from tests.distributed.processes import Pool

SHORT = {"gradiveq": "gradiveq:collect=1,use=5"}  # by default it collects for 100 steps
METHODS = [
    *(SHORT.get(name, name) for name in grace.methods()), "topk:communicator=broadcast", "signsgd:memory=momentum",
    "topk:communicator=scatterreduce", "qsgd:bits=2,communicator=parameterserver", "randomk:ratio=0.1,memory=none",
    "threshold:v=2,relative=true",
]  # fmt: skip


# ---- equality -------------------------------------------------------------------------------------------------------
def none_is_plain(rank: int, world: int, options: dict[str, Any]) -> None:
    plain = train(model(**options), rank, range(20))
    attached = model(**options)
    handle = grace.attach(attached, "none")
    train(attached, rank, range(20))
    handle.detach()
    assert torch.equal(weights(plain), weights(attached))


@pytest.mark.parametrize("options", [{}, {"channels_last": True}, {"static_graph": True}], ids=str)
def test_none_is_plain_ddp_to_the_bit(pool: Pool, options: dict[str, Any]) -> None:
    pool.run(none_is_plain, options)


@pytest.mark.tier("test")
def test_none_is_plain_ddp_with_gradients_as_views_of_the_bucket(pair: Pool) -> None:
    pair.run(none_is_plain, {"gradient_as_bucket_view": True})


def replicas(rank: int, world: int, spec: str, granularity: str) -> dict[str, Any]:
    net = model()
    handle = grace.attach(net, spec, granularity=granularity, check=True)
    train(net, rank, range(6))
    assert_replicas_agree(net, world)
    stats = handle.stats.as_dict()
    handle.detach()
    return stats


@pytest.mark.parametrize("spec", METHODS)
def test_replicas_agree_under_every_method(pool: Pool, spec: str) -> None:
    stats = pool.run(replicas, spec, "parameter")
    assert stats[0]["steps"] == 6
    assert stats[0]["sent_bytes_per_step"] > 0
    assert stats[0]["codec_seconds_per_step"] > 0 < stats[0]["exchange_seconds_per_step"]
    assert stats[0]["ratio"] == pytest.approx(1, abs=1e-3) if spec == "none" else stats[0]["ratio"] > 1.2


@pytest.mark.parametrize("granularity", ["bucket", "model"])
@pytest.mark.parametrize("spec", ["topk:ratio=0.05", "qsgd", "none", "threshold:v=2,relative=true"])
def test_replicas_agree_in_every_granularity(pair: Pool, spec: str, granularity: str) -> None:
    pair.run(replicas, spec, granularity)


# ---- what training jobs do ------------------------------------------------------------------------------------------
def accumulation(rank: int, world: int) -> None:
    net, reference = model(), model()
    handle = grace.attach(net, "none")
    for module in (net, reference):
        for step in range(4):
            with module.no_sync():
                nn.functional.cross_entropy(module(batch(rank, 2 * step)[0]), batch(rank, 2 * step)[1]).backward()
            nn.functional.cross_entropy(module(batch(rank, 2 * step + 1)[0]), batch(rank, 2 * step + 1)[1]).backward()
    for p, q in zip(net.parameters(), reference.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)
    assert handle.stats.steps == 4
    handle.detach()


@pytest.mark.tier("test")
def test_gradient_accumulation_exchanges_once(pair: Pool) -> None:
    pair.run(accumulation)


def unused(rank: int, world: int, spec: str) -> None:
    net = model(find_unused_parameters=True)
    handle = grace.attach(net, spec)
    for step in range(4):
        train(net, rank, range(step, step + 1), use_extra=step % 2 == 0)
    train(net, rank, range(4, 6), use_extra=rank == 0)
    assert_replicas_agree(net, world)
    handle.detach()


@pytest.mark.tier("test")
@pytest.mark.parametrize("spec", ["none", "topk", "powersgd"])
def test_unused_parameters(pair: Pool, spec: str) -> None:
    pair.run(unused, spec)


def two_models(rank: int, world: int) -> None:
    first, second = model(), model()
    handles = [grace.attach(first, "topk:ratio=0.1"), grace.attach(second, "qsgd:bits=4")]
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.05)
    for step in range(4):
        x, y = batch(rank, step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(first(x) + second(x), y).backward()  # both in one backward pass
        optimizer.step()
    for net, handle in zip((first, second), handles, strict=True):
        assert_replicas_agree(net, world)
        assert handle.stats.steps == 4
        handle.detach()


def test_two_models_in_one_backward_pass(pair: Pool) -> None:
    pair.run(two_models)


def dtypes(rank: int, world: int, name: str, spec: str) -> None:
    net = model(getattr(torch, name))
    handle = grace.attach(net, spec)
    train(net, rank, range(4))
    assert_replicas_agree(net, world)
    assert all(p.grad.dtype == getattr(torch, name) for p in net.parameters())
    handle.detach()


@pytest.mark.parametrize("spec", ["none", "topk", "efsignsgd", "bf16", "powersgd"])
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float64"])
def test_dtypes(pair: Pool, name: str, spec: str) -> None:
    pair.run(dtypes, name, spec)


def policies(rank: int, world: int) -> None:
    net = model()
    policy = grace.Policy([
        grace.Rule("*", "none", until_step=2), ("conv.*", "none"), ("*.bias", "fp16"), grace.Rule("*", "topk", min_ndim=2),
        ("*", "none"),
    ])  # fmt: skip
    handle = grace.attach(net, policy)
    train(net, rank, range(2))
    dense = handle.stats.traffic.sent
    train(net, rank, range(2, 4))
    assert_replicas_agree(net, world)
    assert handle.stats.traffic.sent - dense < dense / 5
    handle.detach()


@pytest.mark.tier("test")
def test_a_policy_by_name_shape_and_step(pair: Pool) -> None:
    pair.run(policies)
