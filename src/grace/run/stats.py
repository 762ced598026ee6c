"""Cost of a run so far."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from grace.collectives import Tally, Traffic, ring_bytes
from grace.transports.timed import Timed


@dataclass(slots=True)
class Stats:
    """Totals since the start, for one worker.

    steps: synchronized steps. traffic: rounds and bytes, as the collectives moved them.
    by_axis: the same, along each axis of a grid of ranks; "" is what went between all ranks.
    dense_bytes: bytes of the gradients that were exchanged; a ring all-reduce of them would send 2 (W-1)/W times that.
    codec_seconds: time spent encoding, decoding and fusing.
    exchange_seconds: time spent in collectives, waiting included.
    exposed_seconds: the part of both that training waited for, because no backward pass hid it. On a GPU all seconds
        are the host's, which does not wait for the GPU.
    cpu_seconds: processor time of the exchanging thread outside of collectives: codec and copies.
    collectives: how many of each kind there were, and the bytes of their buffers.
    nonfinite: tensors and steps in which some rank saw an inf or NaN; on an accelerator without the last two steps.
    beside: of what else is exchanged for the same model, along other axes; only :attr:`ratio` counts it.
    dropped: steps whose means, or some of them, nobody has applied: what they changed of the memories was undone. It is known
        when the next step begins.
    disagreement: the distance of the replicas to their average when it was last measured, relative to the average; for gossip,
        where replicas differ.
    """

    world: int
    steps: int = 0
    traffic: Traffic = field(default_factory=Traffic)
    dense_bytes: int = 0
    codec_seconds: float = 0.0
    exchange_seconds: float = 0.0
    exposed_seconds: float = 0.0
    cpu_seconds: float = 0.0
    nonfinite: int = 0
    dropped: int = 0
    collectives: dict[str, Tally] = field(default_factory=dict)
    by_axis: dict[str, Traffic] = field(default_factory=dict)
    beside: tuple[Stats, ...] = ()
    disagreement: float | None = None
    overlaps: bool = False  # whether exchanges run beside training, and the adapter says what is exposed

    @contextlib.contextmanager
    def time(self, network: Timed) -> Iterator[None]:
        """Adds the time of the block, which runs its collectives over ``network``."""
        start, waited, cpu = time.perf_counter(), network.seconds, time.thread_time() - network.cpu_seconds
        yield
        exchange = network.seconds - waited
        self.exchange_seconds += exchange
        seconds = time.perf_counter() - start
        self.codec_seconds += seconds - exchange
        self.exposed_seconds += 0.0 if self.overlaps else seconds
        self.cpu_seconds += time.thread_time() - network.cpu_seconds - cpu

    def leave_out(self, seconds: float) -> None:
        """Takes back this much of the time: it was spent on a measurement."""
        self.codec_seconds -= seconds
        self.cpu_seconds -= seconds
        self.exposed_seconds -= 0.0 if self.overlaps else seconds

    @contextlib.contextmanager
    def wait(self) -> Iterator[None]:
        """In this block training waits for an exchange that runs beside it."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.exposed_seconds += time.perf_counter() - start

    @property
    def bytes_per_step(self) -> float:
        """Bytes sent by this worker, per step."""
        return self.traffic.sent / max(1, self.steps)

    @property
    def ratio(self) -> float:
        """Bytes of a ring all-reduce of the gradients as they are, divided by bytes sent: how many times fewer bytes move. Of
        a sharded model with several axes it is that of all together.
        """
        every = (self, *self.beside)
        dense, sent = (
            sum(ring_bytes(group.dense_bytes, group.world) for group in every),
            sum(group.traffic.sent for group in every),
        )
        return dense / sent if sent else 1.0

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for logs."""
        steps = max(1, self.steps)
        return {
            "steps": self.steps,
            "rounds_per_step": self.traffic.rounds / steps,
            "sent_bytes_per_step": self.traffic.sent / steps,
            "received_bytes_per_step": self.traffic.received / steps,
            "ratio": self.ratio,
            "codec_seconds_per_step": self.codec_seconds / steps,
            "exchange_seconds_per_step": self.exchange_seconds / steps,
            "exposed_seconds_per_step": self.exposed_seconds / steps,
            "nonfinite": self.nonfinite,
            "dropped": self.dropped,
            **({} if self.disagreement is None else {"disagreement": self.disagreement}),
        }
