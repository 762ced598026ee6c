"""Parameters that train without an exchange are named, at each door of torch's, in real processes."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import grace
from grace.adapters.unexchanged import Unexchanged
from grace.errors import ConfigurationError, ReplicasWarning, UnexchangedWarning
from tests.distributed.processes import Pool
from tests.distributed.sharded_models import Net, fully_shard, mesh_of, train
from tests.distributed.sharded_models import pytestmark as fsdp2

Loop = Callable[[DistributedDataParallel, torch.optim.Optimizer, int], None]
METHOD = "topk:ratio=0.1"


def make(**options: Any) -> DistributedDataParallel:
    torch.manual_seed(7)
    return DistributedDataParallel(nn.Sequential(nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 8)), **options)


def inputs(rank: int, step: int) -> torch.Tensor:
    return torch.randn(4, 40, generator=torch.Generator().manual_seed(100 * step + rank))


@contextlib.contextmanager
def heard() -> Iterator[list[str]]:
    """Warnings about parameters without an exchange, and about nothing compared."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield messages
    for warning in caught:
        assert issubclass(warning.category, UnexchangedWarning | ReplicasWarning), warning
        messages.append(str(warning.message))


def run(loop: Loop, rank: int, steps: int = 5, **how: Any) -> list[str]:
    """Warnings while a loop trains a new model."""
    ddp = make()
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    handle = grace.attach(ddp, METHOD, **({"optimizer": optimizer} if how.pop("shown", True) else {}), **how)
    with heard() as messages:
        for step in range(steps):
            optimizer.zero_grad()
            loop(ddp, optimizer, step)
            optimizer.step()
    handle.detach()
    return messages


# ---- loops that lose gradients --------------------------------------------------------------------------------------
def inside(ddp: DistributedDataParallel, _: Any, step: int) -> None:
    ddp.module(inputs(torch.distributed.get_rank(), step)).square().mean().backward()


def converted(ddp: DistributedDataParallel, _: Any, step: int) -> None:
    if step == 4:
        ddp.double()
        ddp.float()
    ddp(inputs(torch.distributed.get_rank(), step)).square().mean().backward()


def one_graph(ddp: DistributedDataParallel, _: Any, step: int) -> None:
    out = ddp(inputs(torch.distributed.get_rank(), step))
    out.square().mean().backward(retain_graph=True)
    out.abs().mean().backward()


def two_losses(ddp: DistributedDataParallel, _: Any, step: int) -> None:
    rank = torch.distributed.get_rank()
    first, second = (ddp(inputs(rank, 2 * step + part)).square().mean() for part in range(2))
    first.backward()
    second.backward()


def adapter(ddp: DistributedDataParallel, optimizer: Any, step: int) -> None:
    if step == 1:
        new = nn.Linear(8, 8)
        ddp.module.append(new)
        optimizer.add_param_group({"params": list(new.parameters())})
    ddp(inputs(torch.distributed.get_rank(), step)).square().mean().backward()


# ---- loops that are right -------------------------------------------------------------------------------------------
def right(ddp: DistributedDataParallel, optimizer: Any, step: int) -> None:
    """Accumulation, another network's or an attack's pass whose gradients are dropped, and evaluation."""
    rank = torch.distributed.get_rank()
    ddp.module(inputs(rank, step)).square().mean().backward()
    optimizer.zero_grad()
    with ddp.no_sync():
        ddp(inputs(rank, step)).square().mean().backward()
    with torch.no_grad():
        ddp.module(inputs(rank, step))
    ddp(inputs(rank, step + 50)).square().mean().backward()
    optimizer.step()  # a second step with the same means


def local(ddp: DistributedDataParallel, _: Any, step: int) -> None:
    with ddp.no_sync():
        ddp(inputs(torch.distributed.get_rank(), step)).square().mean().backward()


def frozen(ddp: DistributedDataParallel, _: Any, step: int) -> None:
    """A parameter that has a gradient of before, and is frozen; and a new one without a gradient."""
    if step == 1:
        new = nn.Linear(8, 8)
        new.weight.grad = torch.ones(8, 8)
        new.requires_grad_(False)
        ddp.module.append(new)
        _.add_param_group({"params": [new.weight, nn.Parameter(torch.zeros(1))]})
    elif step:
        ddp.module[3].weight.grad = torch.ones(8, 8)
    ddp(inputs(torch.distributed.get_rank(), step)).square().mean().backward()


def lost_gradients_are_named(rank: int, world: int) -> None:
    everything = ("0.weight", "0.bias", "2.weight", "2.bias")
    for loop, names, remedy in (
        (inside, everything, "not its .module"),
        (converted, everything, "wrap the module anew"),
        (one_graph, everything, "call backward() once"),
        (two_losses, everything, "call backward() once"),
        (adapter, ("3.weight", "3.bias"), "handle.detach()"),
    ):
        for shown in (True, False):
            messages = run(loop, rank, shown=shown)
            assert len(messages) == 1, (loop, messages)
            assert remedy in messages[0], messages
            assert all(repr(name) in messages[0] for name in names), messages
            assert sum(messages[0].count(repr(name)) for name in everything) == (0 if loop is adapter else 4)
    for loop in (right, local, frozen):
        for shown in (True, False):
            assert run(loop, rank, shown=shown) == [], loop
    ddp = make()
    handle = grace.attach(ddp, METHOD)
    handle.detach()
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    inside(ddp, optimizer, 0)
    with heard() as messages:
        optimizer.step()
    assert not messages, "detached"


def test_lost_gradients_are_named(pair: Pool) -> None:
    pair.run(lost_gradients_are_named)


def a_law_with_a_defect(rank: int, world: int, defect: str) -> None:
    lines = {
        "never looks": lambda self, optimizer: None,
        "names the frozen, too": lambda self, parameters, why: warnings.warn(
            f"{why}{list(parameters)}", UnexchangedWarning, stacklevel=2
        ),
        "forgets that an exchange was made": lambda self: None,
        "takes no_sync for a mistake": lambda self, name: self._arrived.add(name),
    }
    where = dict(zip(lines, ("stepped", "_name", "exchanged", "arrive"), strict=True))[defect]
    with mock.patch.object(Unexchanged, where, lines[defect]), pytest.raises(AssertionError):
        lost_gradients_are_named(rank, world)


@pytest.mark.parametrize(
    "defect",
    ["never looks", "names the frozen, too", "forgets that an exchange was made", "takes no_sync for a mistake"],
)
def test_a_law_with_a_defect_is_caught(pair: Pool, defect: str) -> None:
    pair.run(a_law_with_a_defect, defect)


# ---- what is watched ------------------------------------------------------------------------------------------------
def few_are_watched(rank: int, world: int) -> None:
    """After some steps, a few parameters only; a loss of hooks that comes late is noticed by them, and names all."""
    torch.manual_seed(7)
    deep = DistributedDataParallel(nn.Sequential(*(nn.Linear(8, 8) for _ in range(12))))
    optimizer = torch.optim.SGD(deep.parameters(), lr=0.05)
    handle = grace.attach(deep, "none", optimizer=optimizer)

    def step(model: nn.Module) -> None:
        optimizer.zero_grad()
        model(torch.full((2, 8), 1.0 + rank)).square().mean().backward()
        optimizer.step()

    with heard() as messages:
        for _ in range(4):
            step(deep)
    assert not messages
    assert sum(bool(p._post_accumulate_grad_hooks) for p in deep.parameters()) == 8
    with heard() as messages:
        for _ in range(2):
            step(deep.module)
    assert len(messages) == 1, messages
    assert "and 19 more" in messages[0], messages
    handle.detach()
    assert not any(p._post_accumulate_grad_hooks for p in deep.parameters())


def test_few_parameters_are_watched_and_all_are_named(pair: Pool) -> None:
    pair.run(few_are_watched)


# ---- comparisons of replicas ----------------------------------------------------------------------------------------
def nothing_is_compared(rank: int, world: int) -> None:
    messages = run(inside, rank, check_replicas_every=2)
    assert len(messages) == 2, messages
    assert "check_replicas_every=2, and the optimizer's last 3 steps have compared nothing" in messages[1]
    assert run(right, rank, check_replicas_every=10) == []
    ddp = make()
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    handle = grace.attach(ddp, METHOD, optimizer=optimizer, check_replicas_every=3)
    with heard() as messages:
        for step in range(9):
            optimizer.zero_grad()
            ddp(inputs(rank, step)).square().mean().backward()
            optimizer.step()
    assert not messages
    handle.detach()


def test_it_is_said_where_nothing_is_compared(pair: Pool) -> None:
    pair.run(nothing_is_compared)


# ---- what attach can see --------------------------------------------------------------------------------------------
def seen_by_attach(rank: int, world: int) -> None:
    other = torch.optim.SGD(nn.Linear(3, 5).parameters(), lr=0.1)
    with pytest.raises(ConfigurationError, match=r"group0\.0 of shape \(5, 3\).*no parameter of this model"):
        grace.attach(make(), METHOD, optimizer=other)
    from torch.distributed.optim import _apply_optimizer_in_backward

    ddp = make()
    plain = nn.Linear(40, 40)
    for module in (ddp, plain):
        _apply_optimizer_in_backward(torch.optim.SGD, [next(module.parameters())], {"lr": 0.1})
    with pytest.raises(
        ConfigurationError, match=r"_apply_optimizer_in_backward has given '0.weight' a SGD.*one optimizer"
    ):
        grace.attach(ddp, METHOD)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    with pytest.raises(ConfigurationError, match="_apply_optimizer_in_backward has given 'weight'"):
        grace.DistributedOptimizer(optimizer, METHOD, plain.named_parameters())

    two, apart = make(), nn.Linear(8, 2)
    optimizer = torch.optim.SGD([*two.parameters(), *make().parameters(), *apart.parameters()], lr=0.1)
    handle = grace.attach(two, METHOD, optimizer=optimizer)
    apart(two(inputs(rank, 0))).square().mean().backward()
    with heard() as messages:
        optimizer.step()
        optimizer.step()
    assert len(messages) == 1, messages
    assert "shape (2, 8) and in no model" in messages[0], messages
    handle.detach()


def test_what_attach_can_see_is_refused(pair: Pool) -> None:
    pair.run(seen_by_attach)


# ---- under fully_shard ----------------------------------------------------------------------------------------------
def adapters(rank: int, world: int) -> None:
    """Parameters that no ``fully_shard`` has: before ``attach``, after it, and on purpose."""

    def build(root: bool = True, **options: Any) -> nn.Module:
        torch.manual_seed(7)
        net = Net()
        for part in (*net.children(), *((net,) if root else ())):
            fully_shard(part, mesh=mesh_of("fsdp"), **options)
        return net

    def add(net: nn.Module) -> nn.Linear:
        net.adapter = nn.Linear(1, 1, bias=False)
        return net.adapter

    def loss(net: nn.Module, step: int) -> torch.Tensor:
        made = torch.Generator().manual_seed(10 * step + rank)
        out = net(torch.randn(8, 32, generator=made))
        return (net.adapter(out) if hasattr(net, "adapter") else out).square().mean()

    net = build()
    adapter = add(net)
    with heard() as messages:
        grace.attach(net, METHOD).detach()
    assert len(messages) == 1, messages
    assert "no fully_shard has 'adapter.weight', which came after it" in messages[0], messages
    with heard() as messages:
        handle = grace.attach(net, METHOD, ignored_params=[adapter.weight])
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        loss(net, 0).backward()
        optimizer.step()
        handle.detach()
    assert not messages, messages
    net.requires_grad_(False)
    net.hidden.requires_grad_(True)
    with heard() as messages:
        grace.attach(net, METHOD).detach()
    assert not messages, "a frozen one"

    net = build()
    net(torch.zeros(2, 32))  # leaves the root's parameters whole until the next pass
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    handle = grace.attach(net, METHOD, optimizer=optimizer)
    with heard() as messages:
        for step in range(4):
            optimizer.zero_grad()
            if step == 2:
                optimizer.add_param_group({"params": [add(net).weight]})
            loss(net, step).backward()
            optimizer.step()
    assert len(messages) == 1, messages
    assert "changes 'adapter.weight' on this rank alone" in messages[0], messages
    handle.detach()

    net = build(root=False)
    net.scale = nn.Parameter(torch.ones(1))
    with pytest.raises(ConfigurationError, match=r"no fully_shard has 'scale'.*on the root"):
        grace.attach(net, METHOD)
    grace.attach(net, METHOD, ignored_params=[net.scale]).detach()
    net.scale.requires_grad_(False)
    grace.attach(net, METHOD).detach()

    with pytest.raises(ConfigurationError, match=r"no parameter of this model.*after fully_shard"):
        grace.attach(build(), METHOD, optimizer=torch.optim.SGD(Net().parameters(), lr=0.1))
    with pytest.raises(ConfigurationError, match="ignored_params= is for models under fully_shard"):
        grace.attach(make(), METHOD, ignored_params=[adapter.weight])


@fsdp2
def test_what_no_fully_shard_has_is_named(pair: Pool) -> None:
    pair.run(adapters)


def sees_nothing(rank: int, world: int) -> None:
    with mock.patch("grace.adapters.sharded.check_sharded", return_value=[]), pytest.raises(AssertionError):
        adapters(rank, world)


@fsdp2
def test_a_check_that_sees_nothing_is_caught(pair: Pool) -> None:
    pair.run(sees_nothing)


def one_worker(rank: int, world: int) -> None:
    """It counts steps, and gives the means that it gives elsewhere: what a method sends, the rest next time."""

    def go(spec: str | None) -> tuple[torch.Tensor, int]:
        torch.manual_seed(7)
        net = Net()
        for part in (*net.children(), net):
            fully_shard(part, mesh=mesh_of("fsdp"))
        handle = None if spec is None else grace.attach(net, spec)
        if spec is not None:
            with pytest.raises(ConfigurationError, match="Grace is attached"):
                grace.attach(net, spec)
        result = train(net, 3, "accumulate")
        if handle is not None:
            handle.detach()
        return result, 0 if handle is None else handle.stats.steps

    plain, _ = go(None)
    same, steps = go("none")
    assert steps == 6  # backward passes
    assert torch.equal(plain, same)
    compressed, steps = go(METHOD)
    assert steps == 6
    assert not torch.equal(plain, compressed)


@fsdp2
def test_one_worker_under_fully_shard_counts_its_steps(pools: Callable[[str, int], Pool]) -> None:
    pools("gloo", 1).run(one_worker)
