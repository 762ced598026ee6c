"""Outer loops between threads: small models, whose inner steps are the same bits wherever they are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

import grace
from grace.adapters.outer.loop import OuterLoop
from tests.unit.networks import in_threads, returned

SIZES = (24, 48, 6)


def make_model(seed: int = 1) -> nn.Module:
    """The same numbers in any thread: the global generator is that of all."""
    net = nn.Sequential(nn.Linear(SIZES[0], SIZES[1]), nn.Tanh(), nn.Linear(SIZES[1], SIZES[2]))
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(0.4 * torch.rand(p.shape, generator=draw) - 0.2)
    return net


def make_inner(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)


def train(net: nn.Module, optimizer: torch.optim.Optimizer, rank: int, steps: Iterable[int]) -> None:
    """Inner steps on this rank's data, of these numbers."""
    for index in steps:
        draw = torch.Generator().manual_seed(1000 * index + rank)
        x, y = torch.randn(8, SIZES[0], generator=draw), torch.randint(0, SIZES[2], (8,), generator=draw)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()


def flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([x.detach().reshape(-1) for x in tensors])


class Rank:
    """A rank with its model, its inner optimizer and its loop."""

    def __init__(self, network: Any, rank: int, method: Any = None, **knobs: Any):
        self.rank, self.net = rank, make_model(1 + rank)  # not the same: all begin with rank 0's
        self.inner = make_inner(self.net)
        self.loop: OuterLoop = grace.outer(self.net, self.inner, method, transport=network, **knobs)

    def train(self, *steps: int) -> None:
        train(self.net, self.inner, self.rank, range(*steps))

    @property
    def theta(self) -> Tensor:
        """The shared copy of all parameters, ``[n]``."""
        with self.loop.shared_model() as net:
            return flat(net.parameters())

    @property
    def own(self) -> Tensor:
        """This rank's parameters, ``[n]``."""
        return flat(self.net.parameters())


def on_ranks(world: int, job: Callable[[Any, int], Any]) -> list[Any]:
    """Runs ``job(network, rank)`` on each rank, and returns what it returns there; raises what one of them has raised."""
    return returned(in_threads(world, job))
