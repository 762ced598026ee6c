"""How long a step takes under a method, on any link and with any number of workers: replays beside the backward pass.

Small numbers of workers are replayed, larger ones inferred: processor time grows linearly with the workers, as the wires
to be decoded do, and a buffer's bytes are ``a + b/W + c W`` of three replays, which is exact for whole wires, chunks, and
rows with headers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from grace_bench.advise.echo import Replay, Tally
from grace_bench.network.links import Link
from grace_bench.network.model import hops, line_seconds, play, wire_bytes

REPLAYED = (2, 4, 8)  # workers
MOST_WORKERS = 1024
# Processor time of moving a byte, in the time that y.add_(x) takes for a number, as the suite's probe finds it for gloo over
# TCP. A gather copies each wire more often than a sum does, and gloo adds numbers of half the width one by one.
_MOVING = {"AllReduce": 2.2, "ReduceScatter": 2.2, "AllGather": 4.0, "AllToAll": 2.0, "Broadcast": 2.0, "Permute": 2.0}
_HALF = 2.0
_COPIES = 1.7  # y.add_(x): what DistributedDataParallel does to put gradients into its buckets


@dataclass(frozen=True, slots=True)
class Step:
    """What a worker's step is without communication, and on what.

    Attributes:
        seconds: that it takes on ``cores`` cores.
        ready: when each bucket is ready, as shares of the step, rising.
        numbers: in each bucket.
        cores: of one worker.
        add: seconds of ``y.add_(x)`` for a number.
        hop: seconds of a message of no bytes, beyond the link's latency.
    """

    seconds: float
    ready: tuple[float, ...]
    numbers: tuple[int, ...]
    cores: float
    add: float
    hop: float = 150e-6

    @property
    def threads(self) -> int:
        """Threads that compute: one for each whole core."""
        return max(1, int(self.cores))


class Cost:
    """A method's steps. ``replay``: gives the replay of a number of workers; it is called once for each that is needed."""

    def __init__(self, replay: Callable[[int], Replay]):
        self._replay = functools.cache(replay)
        self.at = functools.cache(self._at)

    def _at(self, world: int) -> Replay:
        if world <= REPLAYED[-1]:
            return self._replay(world)
        return infer([self._replay(one) for one in REPLAYED], world)

    def seconds(self, step: Step, link: Link, world: int) -> float:
        """Seconds of a step."""
        replay = self.at(world)
        total, jobs = sum(step.numbers), []
        for numbers, codec, moved in zip(step.numbers, replay.codec, replay.moved, strict=True):
            half = (codec * total + _COPIES * numbers) * step.add / 2
            moves = [move(kind, tally, step, link, world) for kind, tally in moved.items()]
            jobs.append([(half, half), *moves, (half, half)])
        compute = step.seconds * min(step.threads, step.cores)
        return play(compute, step.threads, step.cores, step.ready, jobs)

    def codec_seconds(self, step: Step, world: int) -> float:
        """Processor seconds of a step's encoding, decoding and machinery."""
        return sum(self.at(world).codec) * sum(step.numbers) * step.add


def move(kind: str, tally: Tally, step: Step, link: Link, world: int) -> tuple[float, float]:
    """(processor seconds, seconds undisturbed) of all collectives of a kind in a bucket."""
    moved = tally.count * wire_bytes(kind, tally.bytes / tally.count, world) if tally.count else 0.0
    half = moved * tally.half / tally.bytes if tally.bytes else 0.0
    cpu = step.add * (_MOVING[kind] * moved + _HALF * half)
    wait = tally.count * hops(kind, world) * (step.hop + link.latency)
    return cpu, wait + max(moved * line_seconds(link), cpu)


def infer(replays: Sequence[Replay], world: int) -> Replay:
    """The replay of more workers, inferred from these."""
    worlds = np.array([one.world for one in replays], dtype=float)
    line = np.stack([np.ones_like(worlds), worlds], axis=1)
    curve = np.stack([np.ones_like(worlds), 1 / worlds, worlds], axis=1)
    there, bent = np.array([1.0, world]), np.array([1.0, 1 / world, world])

    def fit(matrix: np.ndarray, at: np.ndarray, values: Sequence[float]) -> float:
        found = np.linalg.lstsq(matrix, np.array(values), rcond=None)[0]
        return max(0.0, float(at @ found))

    codec = tuple(
        max(fit(line, there, values), *values[-1:]) for values in zip(*(one.codec for one in replays), strict=True)
    )
    moved = []
    for buckets in zip(*(one.moved for one in replays), strict=True):
        kinds = dict.fromkeys(kind for bucket in buckets for kind in bucket)
        bucket = {}
        for kind in kinds:
            tallies = [one.get(kind, Tally()) for one in buckets]
            bucket[kind] = Tally(
                fit(line, there, [tally.count for tally in tallies]),
                fit(curve, bent, [tally.bytes for tally in tallies]),
                fit(curve, bent, [tally.half for tally in tallies]),
            )
        moved.append(bucket)
    sent = sum(
        tally.count * wire_bytes(kind, tally.bytes / tally.count, world)
        for bucket in moved
        for kind, tally in bucket.items()
        if tally.count
    )
    return Replay(world, codec, tuple(moved), sent, all(one.whole for one in replays))
