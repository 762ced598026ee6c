"""Who a worker is in an exchange."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from grace.contract.lent import Lent
from grace.random import Stream


@dataclass(frozen=True, slots=True)
class Peer:
    """Who I am in this exchange.

    rank, world: r and W. step: the global step. name: the tensor's name. seed: the run's seed.
    lr: the learning rate that this step's mean will be applied with, the same on all ranks, where memories should
        follow it; None where they need not, or where it is unknown.
    steps_per_epoch: for schedules that count epochs; None if unknown.
    lent: the storage that I may use, and whether the rest is wanted.
    """

    rank: int
    world: int
    step: int = 0
    name: str = ""
    seed: int = 0
    lr: float | None = None
    steps_per_epoch: int | None = None
    lent: Lent = field(default=Lent())  # frozen: all peers may share it

    def lending(self, **changes: Any) -> Peer:
        """The same worker with other things lent; ``changes`` are fields of :class:`grace.Lent`."""
        return replace(self, lent=replace(self.lent, **changes))

    def private(self, method: str) -> Stream:
        """Randomness that differs between ranks."""
        return Stream(self.seed, method, self.name, self.rank, self.step)

    def shared(self, method: str) -> Stream:
        """Randomness that is the same on all ranks."""
        return Stream(self.seed, method, self.name, None, self.step)
