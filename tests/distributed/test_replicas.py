"""A bit that flips on one rank, in real processes: all ranks hear of it, or it is repaired; through each door."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import grace
from grace.errors import ConfigurationError, ReplicasDifferError, ReplicasWarning
from grace.run.options import Options
from grace.transports.base import Transport
from grace.transports.torch_distributed import TorchDistributed
from tests.distributed.processes import Pool
from tests.unit.run.test_replicas import Flipping

METHOD = "topk:ratio=0.25"
VICTIM, STEP = 2, 4
DOORS = ("ddp", "optimizer", "local")


@pytest.fixture
def pool(pools: Callable[[str, int], Any]) -> Pool:
    ready: Pool = pools("gloo", 3)
    return ready


def over(rank: int, step: int) -> Transport:
    """A network of its own; the victim's memory flips a bit of a mean in this step."""
    network = TorchDistributed.of_same_ranks(dist.group.WORLD)
    return Flipping(network, step) if rank == VICTIM else network


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(40, 32), nn.Tanh(), nn.Linear(32, 4))


def start(door: str, rank: int, step: int, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.0 if door == "local" else 0.5)
    network = over(rank, step)
    if door == "ddp":
        wrapped = DistributedDataParallel(model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", grace.errors.OptimizerWarning)
            return wrapped, optimizer, grace.attach(wrapped, METHOD, transport=network, optimizer=optimizer, **options)
    if door == "local":
        return model, optimizer, grace.local(model, optimizer, METHOD, every=1, transport=network, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", grace.errors.OptimizerWarning)
        optimizer = grace.DistributedOptimizer(
            optimizer, METHOD, model.named_parameters(), transport=network, **options
        )
    return model, optimizer, optimizer.handle


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, steps: range) -> None:
    for step in steps:
        made = torch.Generator().manual_seed(100 * step + rank)
        optimizer.zero_grad()
        model(torch.randn(8, 40, generator=made)).pow(2).mean().backward()
        optimizer.step()


def fail(rank: int, world: int, door: str) -> tuple[str, int | None, list[int], int]:
    model, optimizer, handle = start(door, rank, STEP, check_replicas_every=1)
    try:
        train(model, optimizer, rank, range(8))
    except ReplicasDifferError as error:
        try:
            train(model, optimizer, rank, range(8, 9))
        except ReplicasDifferError as again:
            return str(again), error.step, error.ranks, handle.stats.steps
    finally:
        handle.detach()
    raise AssertionError(f"rank {rank} has heard of nothing")


@pytest.mark.parametrize("door", DOORS)
def test_all_ranks_raise_it_in_the_same_step(pool: Pool, door: str) -> None:
    for text, step, ranks, steps in pool.run(fail, door):
        assert (step, ranks) == (STEP, [VICTIM])
        assert f"the means that rank {VICTIM} got in step {STEP} differ" in text
        assert steps == STEP + (door == "local")


def repair(rank: int, world: int, door: str) -> tuple[list[Tensor], list[str]]:
    """The victim drifts in step 4, which is one of those where little is looked at."""
    model, optimizer, handle = start(door, rank, STEP, check_replicas_every=6, on_difference="broadcast")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ReplicasWarning)
        train(model, optimizer, rank, range(6))
    train(model, optimizer, rank, range(6, 10))  # warnings are errors
    handle.detach()
    momenta = [x for held in optimizer.state.values() for x in held.values() if isinstance(x, Tensor)]
    replica = [p.detach().clone() for p in model.parameters()]
    return replica + momenta, [str(warning.message) for warning in caught if warning.category is ReplicasWarning]


@pytest.mark.parametrize("door", DOORS)
def test_a_drift_is_repaired(pool: Pool, door: str) -> None:
    results = pool.run(repair, door)
    for tensors, _ in results:
        assert all(torch.equal(x, y) for x, y in zip(tensors, results[0][0], strict=True))
    (message,), *others = [message for _, message in results]
    assert others == [[], []]
    assert f"the parameters of rank {VICTIM} differ" in message
    assert "All ranks go on with the parameters of rank 0" in message


def drift(rank: int, world: int) -> list[Tensor]:
    model, optimizer, handle = start("ddp", rank, STEP, check_replicas_every=0)
    train(model, optimizer, rank, range(10))
    handle.detach()
    return [p.detach().clone() for p in model.parameters()]


def test_without_the_check_nobody_says_so(pool: Pool) -> None:
    first, _, victim = pool.run(drift)
    assert not all(torch.equal(x, y) for x, y in zip(first, victim, strict=True))


def join(rank: int, world: int) -> int:
    """Ranks with fewer batches stay behind with their parameters, and that is no difference."""
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = grace.attach(model, METHOD, check_replicas_every=2)
    with model.join():
        train(model, optimizer, rank, range(4 + 2 * rank))
    handle.detach()
    return handle.stats.steps


def test_ranks_that_have_joined_early_do_not_stand_out(pool: Pool) -> None:
    assert max(pool.run(join)) == 8


def refuse(rank: int, world: int) -> str:
    model = DistributedDataParallel(net())
    with pytest.raises(ConfigurationError) as refused:
        grace.attach(model, METHOD, on_difference="broadcast")
    return str(refused.value)


def test_without_the_optimizer_nothing_can_be_repaired(pool: Pool) -> None:
    for text in pool.run(refuse):
        assert "grace.attach(..., optimizer=...)" in text


def test_the_default_compares_every_thousand_steps() -> None:
    assert (Options().check_replicas_every, Options().on_difference) == (1000, "error")
