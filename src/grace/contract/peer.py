"""Identity of a worker in an exchange."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, overload

from torch import Tensor

from grace.contract.lent import Lent
from grace.errors import CompositionError
from grace.random import Stream

_NAME, _MEMORY, _REST, _SPARE = map(operator.attrgetter, ("name", "lent.memory", "lent.rest", "lent.spare"))
_NO_AXES: Mapping[str, tuple[int, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Peer:
    """Identity of this worker in an exchange.

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
        return self.called(self.name, replace(self.lent, **changes))

    def called(self, name: str, lent: Lent) -> Peer:
        """The same worker in the exchange of the tensor of this name, which is lent this."""
        # every field, as replace() would, which takes five times as long, for each tensor of each step
        return Peer(
            self.rank, self.world, self.step, name, self.seed, self.lr, self.steps_per_epoch, lent, self.axes
        )  # fmt: skip

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


class Peers(Sequence[Peer]):
    """Identity of a worker in the exchanges of several tensors, which differ in their name and in what memories lend. As a
    sequence it makes a :class:`Peer` when it is asked for one; who exchanges them as a batch needs none.

    Args:
        like: what is the same for all of them.
        names: of the tensors.
        memories, rests: what :class:`grace.Lent` says of each; both or neither.
        spares: also that; with memories, or where the rests are wanted (``like.lent.keep_rest``).
    """

    __slots__ = ("like", "memories", "names", "rests", "spares")

    def __init__(
        self,
        like: Peer,
        names: Sequence[str],
        memories: Sequence[Tensor] | None = None,
        rests: Sequence[Tensor] | None = None,
        spares: Sequence[Tensor] | None = None,
    ):
        self.like, self.names = like, tuple(names)
        self.memories, self.rests, self.spares = memories, rests, spares

    @classmethod
    def of(cls, peers: Sequence[Peer]) -> Peers:
        """These, at least one, of whom all or none are lent a memory, and all or none a spare."""
        if type(peers) is cls:
            return peers
        like, lent = peers[0], peers[0].lent
        if lent.memory is not None or lent.spare is not None:
            like = like.called(like.name, Lent(lent.keep_rest, None, None, None, lent.workspace, lent.applied_as))
        memories = None if lent.memory is None else list(map(_MEMORY, peers))
        rests = None if lent.rest is None else list(map(_REST, peers))
        spares = None if lent.spare is None else list(map(_SPARE, peers))
        return cls(like, list(map(_NAME, peers)), memories, rests, spares)

    def only(self, at: Sequence[int]) -> Peers:
        """These of them, to whom no memory is lent."""
        spares = None if self.spares is None else [self.spares[i] for i in at]
        return Peers(self.like, [self.names[i] for i in at], spares=spares)

    @property
    def keep_rests(self) -> bool:
        """True if what was not sent is wanted."""
        return self.memories is not None or self.like.lent.keep_rest

    def lending(self, memories: Sequence[Tensor], rests: Sequence[Tensor], spares: Sequence[Tensor]) -> Peers:
        """The same, with memories to add, and where the rests are to be left; each of any shape."""
        return Peers(self.like, self.names, memories, rests, spares)

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, key: int) -> Peer: ...
    @overload
    def __getitem__(self, key: slice) -> list[Peer]: ...
    def __getitem__(self, key: int | slice) -> Peer | list[Peer]:
        if isinstance(key, slice):
            return [self[i] for i in range(*key.indices(len(self)))]
        like, lent = self.like, self.like.lent
        if self.spares is not None or self.memories is not None:
            memory, rest, spare = (
                None if each is None else each[key] for each in (self.memories, self.rests, self.spares)
            )
            lent = Lent(self.keep_rests, memory, rest, spare, lent.workspace, lent.applied_as)
        return like.called(self.names[key], lent)
