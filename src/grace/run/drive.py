"""One worker's exchange over a real network."""

from __future__ import annotations

import contextlib
from typing import TypeVar

from grace.collectives import Exchange
from grace.transports.base import Network

T = TypeVar("T")


def drive(exchange: Exchange[T], network: Network) -> T:
    """Runs an exchange to its end. What the network raises passes through the exchange, so that it can clean up."""
    try:
        op = next(exchange)
        while True:
            try:
                answer = network.run(op)
            except BaseException as error:
                with contextlib.suppress(StopIteration):
                    exchange.throw(error)
                raise  # an exchange that goes on, or ends, after a failed collective would leave the ranks out of step
            op = exchange.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
