"""Workers of a simulation, in one process, as a handle sees them: each has a transport, and :mod:`grace.run.simulate` answers
its collectives.

What a handle does when it is made (rank 0's parameters for all; a comparison of what ranks are configured with) it does here
one worker after the other, rank 0 first: each is compared with those that came before.
"""

from __future__ import annotations

from torch import Tensor

from grace.collectives import Broadcast, Collective, signature
from grace.errors import TransportError, out_of_range


class Simulated:
    """The transport of one of several simulated workers. Made by :func:`simulated`."""

    name = "simulated"
    why = ""

    def __init__(self, rank: int, world: int, texts: list[dict[int, str]], sent: list[Tensor]):
        self.rank, self.world = rank, world
        self._texts, self._sent = texts, sent
        self._asked = self._received = 0

    def run(self, op: Collective) -> Tensor:
        """Copies what rank 0 has broadcast.

        Raises:
            TransportError: another collective, or ranks that come before rank 0.
        """
        if not isinstance(op, Broadcast) or op.root != 0:
            raise TransportError(
                f"rank {self.rank} of a simulation asks for {signature(op)} by itself; run the workers together: "
                "grace.run.simulate.simulate([optimizer.exchanging() for optimizer in optimizers])"
            )
        if self.rank == 0:
            self._sent.append(op.buf.clone())
        self._received += 1
        if self._received > len(self._sent):
            raise TransportError(
                f"rank {self.rank} of a simulation began before rank 0 did; begin in the order of ranks"
            )
        return self._sent[self._received - 1].clone()

    def all_gather_text(self, text: str, *, seconds: float) -> list[str]:
        """The texts of the ranks that have come; the others are taken to say the same, and are compared when they come."""
        if self._asked == len(self._texts):
            self._texts.append({})
        texts = self._texts[self._asked]
        texts[self.rank] = text
        self._asked += 1
        return [texts.get(rank, text) for rank in range(self.world)]

    def close(self, error: BaseException | None = None) -> None:
        """See :class:`grace.transports.base.Transport`; there is nobody to tell."""


def simulated(world: int) -> list[Simulated]:
    """Transports of ``world`` simulated workers, for one handle each, to be made in this order.

    Args:
        world: >= 1.

    Raises:
        ConfigurationError: out of range.

    Example:
        >>> [worker.rank for worker in simulated(3)]
        [0, 1, 2]
    """
    if type(world) is not int or world < 1:
        raise out_of_range("simulated", "world", world, "a whole number >= 1")
    texts: list[dict[int, str]] = []
    sent: list[Tensor] = []
    return [Simulated(rank, world, texts, sent) for rank in range(world)]
