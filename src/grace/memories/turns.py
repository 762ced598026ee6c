"""The memories of a bucket, and as much storage beside them: they take turns, so that a successor has a place to go."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from grace.contract.workspace import Workspace
from grace.flags.finite import on_host


class Turns:
    """The states of T tensors: each tensor's memory is that of one side, and the other side's is free.

    Which side it is, the states say that the worker comes with: also where the step before was undone. If they are on neither
    side, it has loaded others, or the step before was not finite everywhere.

    Args:
        states: of all tensors; free: the same with the memories that are free.

    ``sizes``: numbers of each memory.
    """

    __slots__ = ("_memories", "_now", "_sides", "sizes")

    def __init__(self, states: Sequence[Any], free: Sequence[Any]):
        self._sides = (list(states), list(free))
        self._memories = tuple([state[0] for state in states]), tuple([state[0] for state in free])
        self._now = 0
        self.sizes = [memory.numel() for memory in self._memories[0]]

    @property
    def memories(self) -> tuple[Tensor, ...]:
        """The error that is owed for each tensor, like it."""
        return self._memories[self._now]

    @property
    def rests(self) -> tuple[Tensor, ...]:
        """Room for what will be owed for each tensor, like it."""
        return self._memories[1 - self._now]

    @property
    def successors(self) -> list[Any]:
        """The states whose memories are ``rests``."""
        return self._sides[1 - self._now]

    def begin(self, states: Sequence[Any]) -> bool:
        """True if these are the states of one side: it is the one that holds what is owed."""
        for side in (self._now, 1 - self._now):
            if all(map(operator.is_, states, self._sides[side])):
                self._now = side
                return True
        return False


def find(
    names: tuple[str, ...], xs: Sequence[Tensor], states: Sequence[Any], workspace: Workspace | None
) -> Turns | None:
    """The buffers that were kept for these tensors, of any shapes, if their states are among them."""
    turns: Turns | None = None if workspace is None else workspace.kept.get((Turns, names))
    if turns is None or turns.sizes != [x.numel() for x in xs]:
        return None
    return turns if turns.begin(states) else None


def may_keep(states: Sequence[Any], workspace: Workspace | None) -> bool:
    """True if these states, a memory and what a method inside made of None, may take turns: not where the host does not see
    the end of a step.
    """
    return workspace is not None and on_host(states[0][0].device) and all(state[1] is None for state in states)


def keep(names: tuple[str, ...], states: Sequence[Any], free: Sequence[Any], workspace: Workspace) -> None:
    """From now on these take turns; what was kept for any of the tensors in other company is forgotten."""
    buckets: dict[str, tuple[str, ...]] = workspace.kept.setdefault(Turns, {})
    for name in names:
        other = buckets.get(name, names)
        if other != names:
            workspace.kept.pop((Turns, other), None)
        buckets[name] = names
    workspace.kept[Turns, names] = Turns(states, free)


def forget(names: tuple[str, ...], workspace: Workspace | None) -> None:
    """Nothing is kept for these tensors any more."""
    if workspace is not None:
        workspace.kept.pop((Turns, names), None)


def part(name: str, workspace: Workspace) -> None:
    """The side of this tensor that is not its state may still be asked for: from now on nobody writes there."""
    names = workspace.kept.get(Turns, {}).get(name)
    if names is not None:
        forget(names, workspace)
