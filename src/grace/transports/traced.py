"""Counts what an exchange asks of the network."""

from __future__ import annotations

from typing import TypeVar

from grace.collectives import Exchange, Traffic, cost

T = TypeVar("T")


class Tracer:
    """Adds up the traffic of one worker."""

    def __init__(self, rank: int, world: int):
        self.rank, self.world = rank, world
        self.traffic = Traffic()

    def trace(self, exchange: Exchange[T]) -> Exchange[T]:
        """The same exchange, counted."""
        try:
            op = next(exchange)
            while True:
                self.traffic += cost(op, self.rank, self.world)
                try:
                    answer = yield op
                except BaseException as error:
                    op = exchange.throw(error)
                else:
                    op = exchange.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
