"""One worker's exchange over a real network."""

from __future__ import annotations

import contextlib
from typing import Protocol, TypeVar

from torch import Tensor

from grace.collectives import Collective, Exchange

T = TypeVar("T")


class Transport(Protocol):
    """What moves bytes."""

    rank: int
    world: int

    def run(self, op: Collective) -> Tensor:
        """Performs one collective with all ranks of the group and returns its answer.

        Raises:
            TransportError: it failed, or the operation is one that this transport refuses.
        """


def drive(exchange: Exchange[T], transport: Transport) -> T:
    """Runs an exchange to its end. What the transport raises passes through the exchange, so that it can clean up."""
    try:
        op = next(exchange)
        while True:
            try:
                answer = transport.run(op)
            except BaseException as error:
                with contextlib.suppress(StopIteration):
                    exchange.throw(error)
                raise  # an exchange that goes on, or ends, after a failed collective would leave the ranks out of step
            op = exchange.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
