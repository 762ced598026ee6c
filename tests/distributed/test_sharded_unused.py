"""Parameters under fully_shard that a step does not use, or that are frozen after attaching: what no rank used keeps None."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import grace
from grace.errors import GraceError
from tests.distributed.processes import Pool
from tests.distributed.sharded_models import four, fully_shard, mesh_of, pytestmark, three

__all__ = ["four", "pytestmark", "three"]


class Branches(nn.Module):
    """A block that is used in every third step, two heads of which each step uses one, a module of which it uses a part."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 50)
        self.block = nn.Linear(50, 50)
        self.heads = nn.ModuleList([nn.Linear(50, 30), nn.Linear(50, 30)])
        self.inside = nn.Parameter(torch.linspace(-1, 1, 1155).view(33, 35))  # of the root's own
        self.rare = nn.Parameter(torch.linspace(-1, 1, 1155).view(33, 35))

    def forward(self, x: Tensor, step: int) -> Tensor:
        x = torch.tanh(self.first(x))
        if step % 3 == 1:
            x = torch.tanh(self.block(x))
        own = self.rare if step % 2 else self.inside
        outs = [head(x) for head in self.heads]  # both are computed
        return outs[step % 2] + own.square().sum() / 1000


OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.05, weight_decay=0.1),
    "momentum, decay": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9, weight_decay=0.1),
}


def make(kind: str, flag: bool, nested: bool = True) -> Branches:
    torch.manual_seed(3)
    net = Branches()
    if nested:
        for part in (net.first, net.block, *net.heads):
            fully_shard(part, mesh=mesh_of(kind))
    fully_shard(net, mesh=mesh_of(kind))
    if flag:
        net.set_reduce_scatter_unused_params(True)
    return net


def train(net: nn.Module, name: str, rank: int, steps: int = 5, shift: int = 0) -> tuple[list[Tensor], list[set[str]]]:
    """This rank's shards and outputs at the end, and the parameters without a gradient in each step."""
    optimizer, unused, outs = OPTIMIZERS[name](net.parameters()), [], []
    for step in range(steps):
        optimizer.zero_grad()
        x = torch.randn(8, 32, generator=torch.Generator().manual_seed(10 * step + rank))
        out = net(x, step + shift)
        out.square().mean().backward()
        unused.append({name for name, p in net.named_parameters() if p.grad is None})
        optimizer.step()
        outs.append(out.detach())
    return [*(p.to_local().detach() for p in net.parameters()), *outs], unused


def none_is_plain(rank: int, world: int, kind: str) -> None:
    flags = (False, True) if hasattr(fsdp_module(), "set_reduce_scatter_unused_params") else (False,)
    for name, flag, nested in itertools.product(OPTIMIZERS, flags, (True, False)):
        plain, unused = train(make(kind, flag, nested), name, rank)
        net = make(kind, flag, nested)
        handle = grace.attach(net, "none")
        ended, ours = train(net, name, rank)
        case = f"{name}, flag={flag}, nested={nested}"
        assert ours == unused, case
        assert flag or all(unused), "each step leaves something out"
        assert all(torch.equal(a, b) for a, b in zip(plain, ended, strict=True)), case
        handle.detach()


def fsdp_module() -> Any:
    from torch.distributed.fsdp import FSDPModule

    return FSDPModule


def test_none_is_plain_fsdp_where_modules_are_unused(three: Pool) -> None:
    three.run(none_is_plain, "fsdp")


def test_none_is_plain_hsdp_where_modules_are_unused(four: Pool) -> None:
    four.run(none_is_plain, "hsdp")


def stays(rank: int, world: int, kind: str, method: str) -> None:
    """With a memory, what no rank used has no gradient, does not move, and is owed what it was."""
    net = make(kind, False)
    handle = grace.attach(net, method)
    _, unused = train(net, "momentum, decay", rank, steps=2, shift=1)  # a step of each head, the block once
    assert unused[0] == {"heads.0.weight", "heads.0.bias", "inside"}
    before = {name: p.to_local().detach().clone() for name, p in net.named_parameters()}
    owed = {name: x.full_tensor() for name, x in handle.checkpoint().state_dict()["owed"].items()}
    _, (left,) = train(net, "adamw", rank, steps=1, shift=0)
    assert left == {"block.weight", "block.bias", "heads.1.weight", "heads.1.bias", "rare"}
    later = {name: x.full_tensor() for name, x in handle.checkpoint().state_dict()["owed"].items()}
    for name, p in net.named_parameters():
        assert torch.equal(p.to_local(), before[name]) == (name in left or not before[name].numel()), name
    still = {name for name, x in owed.items() if torch.equal(x, later[name])}
    assert {"block.weight", "heads.1.weight", "rare"} <= still
    assert bool(owed["block.weight"].any()), "it is owed something"
    assert not still & {"first.weight", "heads.0.weight", "inside"}
    handle.detach()


@pytest.mark.parametrize("method", ["topk:ratio=0.05", "efsignsgd"])
def test_what_no_rank_used_does_not_move(three: Pool, method: str) -> None:
    three.run(stays, "fsdp", method)


def test_what_no_rank_used_does_not_move_between_replicas(four: Pool) -> None:
    four.run(stays, "hsdp", "topk:ratio=0.05")


def one_rank(rank: int, world: int) -> None:
    """Each rank uses a head of its own, which torch takes where it is told so: with zeros of those that did not."""
    ends = []
    for method in (None, "none"):
        net = make("fsdp", True, nested=False)
        handle = None if method is None else grace.attach(net, method)
        ends.append(train(net, "adamw", rank, shift=rank)[0])
        if handle is not None:
            handle.detach()
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


@pytest.mark.skipif(
    tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 13), reason="torch cannot be told so"
)
def test_a_module_may_be_used_on_one_rank(three: Pool) -> None:
    three.run(one_rank)


def freezes(rank: int, world: int, kind: str) -> None:
    ends = []
    for method in (None, "none"):
        net = make(kind, False)
        handle = None if method is None else grace.attach(net, method)
        train(net, "momentum, decay", rank, steps=2)
        net.first.requires_grad_(False)
        ends.append(train(net, "momentum, decay", rank, steps=2)[0])
        net.first.requires_grad_(True)
        ends[-1] += train(net, "momentum, decay", rank, steps=2)[0]
        if handle is not None:
            handle.detach()
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    net = make(kind, False)
    net.first.weight.requires_grad_(False)
    handle = grace.attach(net, "topk:ratio=0.05")
    train(net, "momentum, decay", rank, steps=1)
    net.first.weight.requires_grad_(True)
    with pytest.raises(GraceError, match=r"'first\.weight': frozen when Grace was attached.*attach again"):
        train(net, "momentum, decay", rank, steps=1)
    handle.detach()


@pytest.mark.parametrize("kind", ["fsdp", "hsdp"])
def test_parameters_may_be_frozen_later_and_are_named_where_unfrozen(four: Pool, kind: str) -> None:
    four.run(freezes, kind)
    four.retire()  # a backward pass has failed half-way


def chooses(rank: int, world: int) -> None:
    """Steps of a part of the model are no measure to ``auto``, which begins with the first whole one."""
    net = make("fsdp", False, nested=False)
    handle = grace.attach(net, "auto:methods=(bf16)")
    buckets = handle._driver.buckets  # type: ignore[attr-defined]
    train(net, "adamw", rank, steps=4)
    assert handle._driver.buckets is buckets  # type: ignore[attr-defined]
    assert handle._driver._listening is None  # type: ignore[attr-defined]
    assert handle.error is None
    handle.detach()


def test_auto_does_not_measure_parts_of_a_model(pair: Pool) -> None:
    pair.run(chooses)
