"""Optimizers of several workers in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import grace
from grace.optim.base import CompressedOptimizer
from grace.run import simulate
from grace.transports.simulated import simulated

ROWS, UNUSED = 64, 4  # of the embedding; the last ones never occur


def everything(method: str) -> grace.Policy:
    """The method for all tensors, small ones, too."""
    return grace.Policy([("*", method)])


class Workers:
    """``world`` workers that train replicas of one model, each on its own samples.

    Args:
        make: an optimizer of named parameters, with keyword arguments such as ``transport``.
        build: the model.
    """

    def __init__(
        self, make: Callable[..., CompressedOptimizer], world: int, build: Callable[[], nn.Module], **knobs: Any
    ):
        self.models = [build() for _ in range(world)]
        places = simulated(world)
        self.optimizers = [
            make(model.named_parameters(), transport=place, **knobs)
            for model, place in zip(self.models, places, strict=True)
        ]

    def step(self, gradients: Sequence[Any] | None = None) -> None:
        """Makes one step with the gradients that the models have, or with these: tensors for the parameters of each worker."""
        for model, given in zip(self.models, gradients or (), strict=gradients is not None):
            for p, gradient in zip(model.parameters(), given, strict=True):
                p.grad = None if gradient is None else torch.as_tensor(gradient, dtype=p.dtype).clone()
        simulate([optimizer.exchanging() for optimizer in self.optimizers])

    def train(self, steps: range) -> None:
        """Steps whose gradients follow from their numbers and the worker's."""
        for step in steps:
            for rank, model in enumerate(self.models):
                model.zero_grad()
                loss_of(model, step, rank).backward()
            self.step()

    def parameters(self) -> list[Tensor]:
        """All parameters of each worker, as one ``[n]``."""
        return [flat(model) for model in self.models]

    def replicas_equal(self) -> bool:
        first, *others = self.parameters()
        return all(torch.equal(first, other) for other in others)

    def states(self) -> list[dict[str, Any]]:
        return [optimizer.state_dict() for optimizer in self.optimizers]


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def small(seed: int = 0) -> nn.Module:
    """An embedding, of which some rows are not used, and two layers."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(ROWS, 16), nn.Flatten(), nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 4))


def loss_of(model: nn.Module, step: int, rank: int, samples: int = 8) -> Tensor:
    made = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randint(0, ROWS - UNUSED, (samples, 4), generator=made)
    teacher = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(7))
    loss: Tensor = nn.functional.cross_entropy(model(x), teacher[x].sum(1).argmax(1))
    return loss


class Point(nn.Module):
    """A parameter alone."""

    def __init__(self, *shape: int, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.x = nn.Parameter(torch.zeros(shape, dtype=dtype))


def equal(a: Any, b: Any) -> bool:
    """True if two states have the same bits."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(dict.__getitem__(a, key), dict.__getitem__(b, key)) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


def saved(workers: Workers, memories: str) -> list[dict[str, Any]]:
    """The checkpoints of all workers, rank by rank, each of whose collectives are answered by all."""
    from tests.unit.networks import Threads, run_threads

    hub = Threads(len(workers.optimizers))
    for rank, optimizer in enumerate(workers.optimizers):
        optimizer.session._transport = hub.member(rank)
    return run_threads(
        len(workers.optimizers), lambda rank: workers.optimizers[rank].checkpoint(memories).state_dict(), hub
    )


def load(workers: Workers, given: dict[str, Any], memories: str, saved_by: int) -> list[Any]:
    """Loads a checkpoint into all workers."""
    from tests.unit.networks import Threads, run_threads

    hub = Threads(len(workers.optimizers))
    places = [optimizer.session._transport for optimizer in workers.optimizers]
    for rank, optimizer in enumerate(workers.optimizers):
        optimizer.session._transport = hub.member(rank)
    count = None if memories == "mean" else saved_by
    out = run_threads(
        len(workers.optimizers),
        lambda rank: workers.optimizers[rank].checkpoint(memories, count).load_state_dict(given),
        hub,
    )
    for optimizer, place in zip(workers.optimizers, places, strict=True):
        optimizer.session._transport = place
    return out
