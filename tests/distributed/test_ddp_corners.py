"""Corners of DistributedDataParallel that users reach: uneven inputs, frozen parameters, copied, dropped models."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import grace
from grace.errors import ConfigurationError, FingerprintMismatch, GraceError, InputError
from tests.distributed.ddp_models import Net, assert_replicas_agree, batch, model, train, weights
from tests.distributed.processes import Pool
from tests.patience import PATIENCE


# ---- uneven inputs --------------------------------------------------------------------------------------------------
def joining(rank: int, world: int, spec: str) -> list[int]:
    """Rank r has r batches more than rank 0: those that have ended give zeros, as under torch's own hooks."""
    net, plain = model(), model()
    handle = grace.attach(net, spec)
    with net.join():
        train(net, rank, range(2 + rank))
    assert_replicas_agree(net, world)
    if spec == "none":
        plain.register_comm_hook(None, _torchs_hook)
        with plain.join():
            train(plain, rank, range(2 + rank))
        torch.testing.assert_close(weights(net), weights(plain), atol=1e-6, rtol=1e-6)
    train(net, rank, range(2))  # and together again
    steps = handle.stats.steps
    handle.detach()
    return [steps]


def _torchs_hook(state: object, bucket: Any) -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    return default_hooks.allreduce_hook(None, bucket)


_torchs_hook.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[Tensor]}


@pytest.mark.parametrize("spec", ["none", "topk:ratio=0.1", "powersgd"])
def test_uneven_inputs(pool: Pool, spec: str) -> None:
    assert pool.run(joining, spec) == [[2 + pool.world - 1 + 2]] * pool.world


# ---- parameters that are frozen, ignored, or come too late ----------------------------------------------------------
def frozen(rank: int, world: int) -> None:
    net = model(find_unused_parameters=True)
    net.module.extra.requires_grad_(False)  # behind DistributedDataParallel's back
    before = net.module.extra.weight.clone()
    handle = grace.attach(net, "topk:ratio=0.1")
    train(net, rank, range(3))
    assert_replicas_agree(net, world)
    assert torch.equal(net.module.extra.weight, before)
    handle.detach()

    nothing = model()
    nothing.requires_grad_(False)
    with pytest.raises(ConfigurationError, match="no parameter requires a gradient"):
        grace.attach(nothing, "topk")


def test_parameters_that_were_frozen_after_wrapping(pair: Pool) -> None:
    pair.run(frozen)


def ignored(rank: int, world: int, granularity: str) -> None:
    torch.manual_seed(7)
    net = Net()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["extra.weight"])
    ddp = DistributedDataParallel(net, bucket_cap_mb=0.03)
    handle = grace.attach(ddp, "topk:ratio=0.1", granularity=granularity)
    train(ddp, rank, range(3))
    others = nn.ParameterList([p for name, p in net.named_parameters() if name != "extra.weight"])
    assert_replicas_agree(others, world)
    handle.detach()


@pytest.mark.parametrize("granularity", ["parameter", "model"])
def test_parameters_that_are_ignored_stay_local(pair: Pool, granularity: str) -> None:
    pair.run(ignored, granularity)


def too_late(rank: int, world: int, granularity: str) -> None:
    torch.manual_seed(7)
    net = Net()
    net.extra.requires_grad_(False)
    ddp = DistributedDataParallel(net, bucket_cap_mb=0.03)
    net.extra.requires_grad_(True)
    handle = grace.attach(ddp, "topk:ratio=0.1", granularity=granularity)
    with pytest.raises(InputError, match=r"ended without 'extra.weight', 'extra.bias'.*unfreeze it first"):
        train(ddp, rank, range(1))
    handle.detach()


@pytest.mark.parametrize("granularity", ["parameter", "bucket", "model"])
def test_a_parameter_that_never_arrives_is_named(pair: Pool, granularity: str) -> None:
    pair.run(too_late, granularity)


def unfrozen_later(rank: int, world: int) -> None:
    """On one rank only: the other hears of it. Frozen again, all could have gone on."""
    net = model(find_unused_parameters=True)
    net.module.extra.requires_grad_(False)
    handle = grace.attach(net, "topk:ratio=0.1")
    train(net, rank, range(2))
    net.module.extra.requires_grad_(rank == 1)
    text = "'extra.weight' requires a gradient now.*wrap model.module anew" if rank == 1 else "has died, or has left"
    with pytest.raises((InputError, GraceError), match=text):
        train(net, rank, range(3))
    handle.detach()


def test_what_is_unfrozen_after_some_steps_is_named(pair: Pool) -> None:
    pair.run(unfrozen_later)


# ---- two exchanges of one gradient ----------------------------------------------------------------------------------
def exchanged_twice(rank: int, world: int) -> None:
    net = model()

    def distribute() -> Any:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        return grace.DistributedOptimizer(optimizer, "topk:ratio=0.1", net.module.named_parameters())

    with pytest.raises(ConfigurationError, match=r"'conv\.weight' belongs to a DistributedDataParallel"):
        distribute()
    plain = net.module
    del net
    net = SimpleNamespace(module=plain, parameters=plain.parameters)
    optimizer = distribute()  # the wrapper is gone
    net = DistributedDataParallel(plain)
    with pytest.raises(ConfigurationError, match="is trained by a grace"):
        grace.attach(net, "topk")
    nn.functional.cross_entropy(net(batch(rank, 0)[0]), batch(rank, 0)[1]).backward()
    with pytest.raises(ConfigurationError, match="belongs to a DistributedDataParallel"):
        optimizer.step()  # wrapped after the optimizer was made
    optimizer.handle.detach()
    handle = grace.attach(net, "topk:ratio=0.1")
    train(net, rank, range(2))
    assert_replicas_agree(net, world)
    handle.detach()


def test_a_gradient_is_exchanged_once(pair: Pool) -> None:
    pair.run(exchanged_twice)


# ---- ranks that differ ----------------------------------------------------------------------------------------------
class Turned(nn.Module):
    """Two layers, registered in another order on rank 1."""

    def __init__(self, rank: int):
        super().__init__()
        for name in ("first", "second") if rank == 0 else ("second", "first"):
            self.add_module(name, nn.Linear(8, 8))


def differing(rank: int, world: int) -> list[str]:
    messages = []
    sizes = DistributedDataParallel(Net(), bucket_cap_mb=1 + rank)
    finding = DistributedDataParallel(Net(), find_unused_parameters=rank == 1)
    for net in (DistributedDataParallel(Turned(rank)), sizes, finding):
        with pytest.raises(FingerprintMismatch) as caught:
            grace.attach(net, "topk")
        messages.append(str(caught.value))
    return messages


def test_order_and_buckets_are_compared(pair: Pool) -> None:
    for messages in pair.run(differing):
        assert "place of parameter first.weight: 0 on ranks [0], 2 on ranks [1]" in messages[0]
        assert "bucket_bytes: 1048576 on ranks [0], 2097152 on ranks [1]" in messages[1]
        assert "find_unused_parameters: False on ranks [0], True on ranks [1]" in messages[2]


# ---- models that are dropped or copied ------------------------------------------------------------------------------
def dropped(rank: int, world: int) -> None:
    def train_one() -> None:
        net = model()
        grace.attach(net, "topk")
        nn.functional.cross_entropy(net(batch(rank, 0)[0]), batch(rank, 0)[1]).backward()

    def count() -> tuple[int, int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    def settled() -> tuple[int, int, int]:
        gc.collect()
        dist.barrier()
        return count()

    train_one()
    settled()
    before = settled()
    for _ in range(10):
        train_one()
        gc.collect()
    after, until = settled(), time.monotonic() + PATIENCE
    while any(now > then + 4 for now, then in zip(after, before, strict=True)):  # threads need a moment to end
        assert time.monotonic() < until, f"{before} became {after}"
        time.sleep(0.01)
        after = count()


def test_dropped_models_leave_nothing_behind(pair: Pool) -> None:
    pair.run(dropped)


def copies(rank: int, world: int) -> None:
    net = model()
    handle = grace.attach(net, "topk:ratio=0.1")
    train(net, rank, range(1))
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        steps = handle.stats.steps
        train(twin, rank, range(1))
        assert handle.stats.steps == steps, "a copy is not attached"
        assert_replicas_agree(twin, world)
        other = grace.attach(twin, "topk:ratio=0.1")
        train(twin, rank, range(2))
        assert other.stats.steps == 2
        other.detach()
    handle.detach()


def test_a_model_can_be_copied_while_attached(pair: Pool) -> None:
    pair.run(copies)
