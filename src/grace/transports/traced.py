"""Counts what an exchange asks of the network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from grace.collectives import Collective, Exchange, Traffic, cost, watch

T = TypeVar("T")


class Tracer:
    """Adds up the traffic of one worker.

    Args:
        rank, world: the worker's.
        axes: its place along each axis of a grid, and how many there are; see :class:`grace.Peer`.

    ``traffic`` is all of it, ``by_axis`` the part along each axis: "" for what goes between all ranks.
    """

    def __init__(self, rank: int, world: int, axes: Mapping[str, tuple[int, int]] | None = None):
        self.place(rank, world, axes)
        self.traffic = Traffic()
        self.by_axis: dict[str, Traffic] = {}

    def place(self, rank: int, world: int, axes: Mapping[str, tuple[int, int]] | None = None) -> None:
        """The worker's place from now on, among other workers; what was counted stays."""
        self.rank, self.world = rank, world
        self._places = {**(axes or {}), "": (rank, world)}

    def trace(self, exchange: Exchange[T]) -> Exchange[T]:
        """The same exchange, counted."""
        return watch(exchange, self._count)

    def _count(self, op: Collective) -> Collective:
        moved = cost(op, *self._places[op.axis])
        self.traffic += moved
        self.by_axis[op.axis] = self.by_axis.get(op.axis, Traffic()) + moved
        return op
