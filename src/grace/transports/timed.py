"""A transport that records what its collectives cost."""

from __future__ import annotations

import time

from torch import Tensor

from grace.collectives import Collective, Tally, kind_of
from grace.transports.base import Transport, Wrapper


class Timed(Wrapper):
    """Wraps a transport, and records how long its collectives take.

    seconds: spent in collectives, waiting included. cpu_seconds: processor time of the calling thread in them.
    collectives: a :class:`grace.collectives.Tally` for each kind, see :func:`grace.collectives.kind_of`.
    """

    def __init__(self, transport: Transport):
        super().__init__(transport)
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self.collectives: dict[str, Tally] = {}

    def run(self, op: Collective) -> Tensor:
        """See :class:`grace.transports.base.Transport`."""
        self.collectives.setdefault(kind_of(op), Tally()).see(op)
        start, cpu = time.perf_counter(), time.thread_time()
        try:
            return self.transport.run(op)
        finally:
            self.seconds += time.perf_counter() - start
            self.cpu_seconds += time.thread_time() - cpu
