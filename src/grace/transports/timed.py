"""A transport that records what its collectives cost."""

from __future__ import annotations

import time
from dataclasses import dataclass

from torch import Tensor

from grace.collectives import Collective
from grace.transports.base import Transport, Wrapper


@dataclass(slots=True)
class Tally:
    """Collectives of one kind: how many, and the bytes of the buffers given to them."""

    count: int = 0
    bytes: int = 0


class Timed(Wrapper):
    """Wraps a transport, and records how long its collectives take.

    seconds: spent in collectives, waiting included. cpu_seconds: processor time of the calling thread in them.
    collectives: a :class:`Tally` for each kind; one along an axis is a kind of its own, such as
    "AllReduce along machine".
    """

    def __init__(self, transport: Transport):
        super().__init__(transport)
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self.collectives: dict[str, Tally] = {}

    def run(self, op: Collective) -> Tensor:
        """See :class:`grace.transports.base.Transport`."""
        kind = type(op).__name__
        tally = self.collectives.setdefault(f"{kind} along {op.axis}" if op.axis else kind, Tally())
        tally.count += 1
        tally.bytes += op.buf.numel() * op.buf.element_size()
        start, cpu = time.perf_counter(), time.thread_time()
        try:
            return self.transport.run(op)
        finally:
            self.seconds += time.perf_counter() - start
            self.cpu_seconds += time.thread_time() - cpu
