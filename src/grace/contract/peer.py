"""Who a worker is in an exchange."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from grace.contract.lent import Lent
from grace.errors import CompositionError
from grace.random import Stream

_NO_AXES: Mapping[str, tuple[int, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Peer:
    """Who I am in this exchange.

    rank, world: r and W. step: the global step. name: the tensor's name. seed: the run's seed.
    lr: the learning rate that this step's mean will be applied with, the same on all ranks, where memories should
        follow it; None where they need not, or where it is unknown.
    steps_per_epoch: for schedules that count epochs; None if unknown.
    lent: the storage that I may use, and whether the rest is wanted.
    axes: where I stand along each axis of the grid of ranks: ``{"machine": (rank, size)}``; empty without a grid.
    """

    rank: int
    world: int
    step: int = 0
    name: str = ""
    seed: int = 0
    lr: float | None = None
    steps_per_epoch: int | None = None
    lent: Lent = field(default=Lent())  # frozen: all peers may share it
    axes: Mapping[str, tuple[int, int]] = field(default_factory=lambda: _NO_AXES)

    def lending(self, **changes: Any) -> Peer:
        """The same worker with other things lent; ``changes`` are fields of :class:`grace.Lent`."""
        return replace(self, lent=replace(self.lent, **changes))

    def on(self, axis: str) -> Peer:
        """The same worker as one of those on its line along this axis, for an exchange that goes :func:`along
        <grace.collectives.along>` it. Lines beside each other have random numbers of their own: the name says which line.

        Raises:
            CompositionError: there is no such axis.
        """
        if axis not in self.axes:
            known = ", ".join(map(repr, self.axes)) or "no axes: all workers are alike"
            raise CompositionError(f"there is no axis {axis!r} in this run; it has {known}")
        rank, world = self.axes[axis]
        line = "".join(f"@{other}={at}" for other, (at, size) in self.axes.items() if other != axis and size > 1)
        return replace(self, rank=rank, world=world, name=self.name + line, axes=_NO_AXES)

    def private(self, method: str) -> Stream:
        """Randomness that differs between ranks."""
        return Stream(self.seed, method, self.name, self.rank, self.step)

    def shared(self, method: str) -> Stream:
        """Randomness that is the same on all ranks."""
        return Stream(self.seed, method, self.name, None, self.step)
