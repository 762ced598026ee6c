"""Optimizers that exchange by themselves, in real processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from grace.errors import ConfigurationError, FingerprintMismatch, InputError, TransportError
from grace.optim import Dion, OneBitAdam, parse
from tests.distributed.processes import Pool
from tests.unit.optim.workers import Workers, flat, loss_of, small

TEXTS = [
    "onebitadam:freeze_step=3", "zerooneadam:freeze_step=3,double_every=1,max_interval=2", "dion:rank_fraction=0.25",
    "demo:k=8,tile=16",
]  # fmt: skip


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step, rank).backward()
        optimizer.step()


def as_simulated(rank: int, world: int, text: str) -> None:
    """The simulator's bits, from a start that only rank 0 has."""
    model = small(seed=rank)
    optimizer = parse(text)(model.named_parameters(), lr=0.01)
    assert "gloo" in optimizer.session.transport
    train(model, optimizer, rank, range(8))  # which end a window, too
    workers = Workers(parse(text), world, small, lr=0.01)
    workers.train(range(8))
    torch.testing.assert_close(flat(model), flat(workers.models[rank]), atol=1e-6, rtol=1e-5)
    assert optimizer.stats.traffic == workers.optimizers[rank].stats.traffic
    rows = [torch.empty_like(flat(model)) for _ in range(world)]
    dist.all_gather(rows, flat(model))
    assert all(torch.equal(row, rows[0]) for row in rows)
    optimizer.close()


@pytest.mark.parametrize("text", TEXTS)
def test_a_job_computes_what_the_simulator_does(pair: Pool, text: str) -> None:
    pair.run(as_simulated, text)


def refuse(rank: int, world: int) -> None:
    model = small()
    ddp = DistributedDataParallel(model)
    with pytest.raises(ConfigurationError, match=r"DistributedDataParallel.*not wrapped"):
        OneBitAdam(ddp.module.named_parameters())
    del ddp
    with pytest.raises(FingerprintMismatch, match="freeze_step"):
        OneBitAdam(model.named_parameters(), freeze_step=5 + rank)
    with pytest.raises(ConfigurationError, match="group= and transport="):
        OneBitAdam(model.named_parameters(), group=dist.group.WORLD, transport="gloo")


def test_what_is_refused_in_a_job(pair: Pool) -> None:
    pair.run(refuse)


def fail(rank: int, world: int) -> None:
    """A sparse gradient on one rank: it says so, and the other hears of it."""
    table = nn.Embedding(40, 30, sparse=rank == 1)
    optimizer = OneBitAdam(table.named_parameters())
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(InputError if rank else TransportError, match="sparse" if rank else "rank 0 of 2"):
        optimizer.step()


def test_an_error_of_one_rank_is_heard_by_the_others(pair: Pool) -> None:
    pair.run(fail)


# ---- shards ---------------------------------------------------------------------------------------------------------
def shards(rank: int, world: int, text: str, parts: int) -> None:
    """Replicas of a sharded model compute what replicas of the whole model do, each shard over its own group."""
    mesh = init_device_mesh("cpu", (world // parts, parts), mesh_dim_names=("replicate", "shard"))
    group, replica = mesh["replicate"].get_group(), rank // parts
    model = small()
    fully_shard(model[2], mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    if parts > 1 or world == 2:
        with pytest.raises(ConfigurationError, match="is a DTensor: say with group="):
            parse(text)(model.named_parameters())
    optimizer = parse(text)(model.named_parameters(), lr=0.01, group=group)
    whole = Workers(parse(text), world // parts, small, lr=0.01)
    for step in range(8):
        optimizer.zero_grad()
        loss_of(model, step, replica).backward()  # the ranks of a replica have the same samples
        optimizer.step()
    whole.train(range(8))
    for name, p in model.named_parameters():
        full: Any = p.full_tensor()  # type: ignore[attr-defined]
        expected = whole.models[replica].get_parameter(name).detach()
        torch.testing.assert_close(full.detach(), expected, atol=2e-5, rtol=1e-4)
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    before = [p.to_local().clone() for p in model.parameters()]  # type: ignore[attr-defined]
    if rank == 0:  # other shards are finite, and those who exchange them do not hear of it from rank 0
        next(model.parameters()).grad.to_local()[0, 0] = torch.nan  # type: ignore[union-attr]
    optimizer.step()
    assert (optimizer.steps, optimizer.stats.nonfinite > 0) == (8, True)
    assert all(torch.equal(p.to_local(), x) for p, x in zip(model.parameters(), before, strict=True))  # type: ignore[attr-defined]
    assert (
        optimizer.state[next(iter(model.parameters()))]["exp_avg"].placements
        == next(iter(model.parameters())).placements
    )
    optimizer.close()
    with pytest.raises(ConfigurationError, match=r"is a DTensor.*each rank has the whole"):
        Dion(model.named_parameters(), group=group)
    wrong = mesh["shard"].get_group()
    if parts > 1:
        with pytest.raises(ConfigurationError, match="they hold other shards"):
            parse(text)(model.named_parameters(), group=wrong)


EXACT = "onebitadam:freeze_step=3,method=none"  # a shard has other scales than the whole tensor


def test_shards_are_exchanged_between_replicas(pair: Pool) -> None:
    pair.run(shards, TEXTS[0], 1)


def test_shards_of_two_are_exchanged_between_replicas(pools: Any) -> None:
    pools("gloo", 4).run(shards, EXACT, 2)
