"""The protocol of a transport, which moves bytes between the ranks of a job and tells each rank the others' texts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Protocol

from torch import Tensor

from grace.collectives import Collective


class Network(Protocol):
    """Performs collectives: all that one exchange needs."""

    def run(self, op: Collective) -> Tensor:
        """Performs one collective with all ranks and returns its answer.

        Raises:
            TransportError: it failed, or the operation is one that this network refuses.
        """


class Transport(Network, Protocol):
    """Moves bytes between ``world`` ranks; this one is ``rank``.

    One thread at a time uses it, and all ranks ask for the same things in the same order.
    """

    rank: int
    world: int

    def all_gather_text(self, text: str, *, seconds: float) -> list[str]:
        """Everyone's text, in the order of the ranks; all ranks call it, and none returns before all can read it.

        Unlike a collective it needs no matching tensors, so that ranks that differ can find out how.

        Raises:
            AbsentError: some ranks did not come within ``seconds``; names them.
            TransportError: the ranks could not be reached.
        """

    def close(self, error: BaseException | None = None) -> None:
        """Leaves the job. With an error, ranks that wait for this one hear of it at once, as a TransportError of theirs.

        A second call does nothing.
        """


def describe(transport: Transport) -> str:
    """The transport in words, and why it was chosen, if that is known: ``gloo (RANK and WORLD_SIZE are set)``."""
    name, why = getattr(transport, "name", type(transport).__name__), getattr(transport, "why", "")
    return f"{name} ({why})" if why else str(name)


def find_axes(transport: Transport) -> Mapping[str, tuple[int, int]]:
    """Position of this rank along each axis of the transport's grid, ``{"machine": (rank, size)}``; empty without a grid."""
    axes: Mapping[str, tuple[int, int]] = getattr(transport, "axes", {})
    return axes


class Closing(Protocol):
    """Something that can be closed, such as a transport, a session or a lane."""

    def close(self) -> None:
        """Ends it, and the threads, groups and connections that it has made."""


@contextlib.contextmanager
def closed_on_error(*opened: Closing) -> Iterator[None]:
    """Closes these, the first one first, if something within fails: for constructors, whose object nobody can close then."""
    try:
        yield
    except BaseException:
        for thing in opened:
            thing.close()
        raise


class Wrapper:
    """A transport around a transport, to derive from: it passes everything on."""

    def __init__(self, transport: Transport):
        self.transport = transport
        self.rank, self.world, self.axes = transport.rank, transport.world, find_axes(transport)

    def run(self, op: Collective) -> Tensor:
        """See :class:`Transport`."""
        return self.transport.run(op)

    def all_gather_text(self, text: str, *, seconds: float) -> list[str]:
        """See :class:`Transport`."""
        return self.transport.all_gather_text(text, seconds=seconds)

    def close(self, error: BaseException | None = None) -> None:
        """See :class:`Transport`."""
        self.transport.close(error)


class Kept(Wrapper):
    """A user's own transport, in the hands of a handle: it stays open when the handle leaves, for whatever the user does next.

    Only an error closes it, since the other ranks hear of the error through that.
    """

    def __init__(self, transport: Transport):
        super().__init__(transport)
        self.name, self.why = getattr(transport, "name", type(transport).__name__), getattr(transport, "why", "")

    def close(self, error: BaseException | None = None) -> None:
        """See :class:`Transport`; without an error nothing happens."""
        if error is not None:
            self.transport.close(error)
