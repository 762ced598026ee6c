"""Time of a step under a method: what it encodes, moves and decodes, beside the backward pass.

A *replay* says what one worker does (:mod:`grace.predict.replay`), a *network* what moving takes (:class:`Assumed`,
:class:`Probed`), and the timeline plays both (:mod:`grace.predict.timeline`). Whoever asks how long a step takes asks here:
``grace advise``, the link model of runs, what a codec is worth, the report, and ``auto``.

Small numbers of workers are replayed, larger ones inferred: processor time grows linearly with the workers, as the wires
to be decoded do, and a buffer's bytes are ``a + b/W + c W`` of three replays, which is exact for whole wires, chunks, and
rows with headers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from grace.collectives import Tally, split_kind
from grace.predict.links import Link
from grace.predict.probe import Timings
from grace.predict.replay import Replay
from grace.predict.timeline import Host, Phase, hops, play, wire_bytes

REPLAYED = (2, 4, 8)  # workers
MOST_WORKERS = 1024
HOP = 150e-6  # seconds of a message of no bytes over gloo, beyond the link's latency
NCCL_HOP, NCCL_CALL = 10e-6, 30e-6  # the same over NCCL, assumed; and of the host for a collective
# Processor time of moving a byte, in the time that y.add_(x) takes for a number, as the suite's probe finds it for gloo over
# TCP. A gather copies each wire more often than a sum does, and gloo adds numbers of half the width one by one.
_MOVING = {"AllReduce": 2.2, "ReduceScatter": 2.2, "AllGather": 4.0, "AllToAll": 2.0, "Broadcast": 2.0, "Permute": 2.0}
_NARROW = 2.0
COPIES = 1.7  # y.add_(x): what DistributedDataParallel does to put gradients into its buckets


class Carrier(Protocol):
    """The costs of moving bytes."""

    def move(self, kind: str, tally: Tally, world: int) -> Phase:
        """(processor seconds, seconds undisturbed) of these collectives of one kind, in which ``world`` workers take part."""

    def issue(self, kind: str) -> float:
        """Seconds of a GPU's host for one collective of this kind."""


@dataclass(frozen=True, slots=True)
class Assumed:
    """A network of which only the links are known: constants of gloo over TCP, on one machine.

    Attributes:
        link: of each worker. lines: other links, along axes of a grid.
        add: seconds of ``y.add_(x)`` for a number. hop: of a message of no bytes, beyond the link's latency. call: of a GPU's
            host, for a collective.
    """

    link: Link
    add: float
    hop: float = HOP
    lines: Mapping[str, Link] = field(default_factory=dict)
    call: float = 0.0

    def move(self, kind: str, tally: Tally, world: int) -> Phase:
        """See :class:`Carrier`."""
        name, narrow, axis = split_kind(kind)
        link = self.lines.get(axis, self.link)
        moved = tally.count * wire_bytes(kind, tally.bytes / tally.count, world) if tally.count else 0.0
        cpu = self.add * (_MOVING[name] + (_NARROW if narrow else 0.0)) * moved
        wait = tally.count * hops(kind, world) * (self.hop + link.latency)
        return cpu, wait + max(moved * link.seconds_per_byte, cpu)

    def issue(self, kind: str) -> float:
        """See :class:`Carrier`."""
        return self.call


@dataclass(frozen=True, slots=True)
class Probed:
    """A network that was measured. ``link``: another one instead of that; None: the one that was measured."""

    timings: Timings
    link: Link | None = None

    def move(self, kind: str, tally: Tally, world: int) -> Phase:
        """See :class:`Carrier`."""
        if not tally.count:
            return 0.0, 0.0
        seconds = self.timings.seconds(kind, tally.bytes / tally.count, world, self.link)
        return tally.bytes * self.timings.kinds[kind].cpu, tally.count * seconds

    def issue(self, kind: str) -> float:
        """See :class:`Carrier`."""
        return self.timings.kinds[kind].issue


@dataclass(frozen=True, slots=True)
class Step:
    """A worker's step without communication, and its hardware.

    Attributes:
        seconds: that it takes on ``cores`` cores.
        ready: when each bucket is ready, as shares of the step, rising.
        numbers: in each bucket.
        cores: of one worker.
        add: seconds of ``y.add_(x)`` for a number.
        copies: what is done beside the codec to put gradients into buckets, in ``y.add_(x)``.
        host: of a GPU, without what it issues; ``cores`` is then 1, the GPU. None: a processor.
    """

    seconds: float
    ready: tuple[float, ...]
    numbers: tuple[int, ...]
    cores: float
    add: float
    copies: float = COPIES
    host: Host | None = None

    @property
    def threads(self) -> int:
        """Threads that compute: one for each whole core."""
        return max(1, int(self.cores))

    @property
    def compute(self) -> float:
        """Processor seconds of the step."""
        return self.seconds * min(self.threads, self.cores)

    def over(self, link: Link) -> Assumed:
        """The network of these links, on machines like this one."""
        if self.host is not None:
            return Assumed(link, 0.0, NCCL_HOP, call=NCCL_CALL)
        return Assumed(link, self.add)


class Cost:
    """A method's steps.

    Args:
        replay: gives the replay of a number of workers; it is called once for each that is needed.
        worlds: numbers of workers, three and rising, from which larger ones are inferred.
    """

    def __init__(self, replay: Callable[[int], Replay], worlds: Sequence[int] = REPLAYED):
        self._replay, self._worlds = functools.cache(replay), tuple(worlds)
        self.at = functools.cache(self._at)

    def _at(self, world: int) -> Replay:
        if world <= self._worlds[-1]:
            return self._replay(world)
        return infer([self._replay(workers) for workers in self._worlds], world)

    def jobs(self, step: Step, network: Carrier, world: int) -> list[list[Phase]]:
        """The phases of each bucket."""
        replay = self.at(world)
        total = sum(step.numbers)
        return [
            phases((codec * total + step.copies * numbers) * step.add, moved, network, world, replay.axes)
            for numbers, codec, moved in zip(step.numbers, replay.codec, replay.moved, strict=True)
        ]

    def seconds(self, step: Step, network: Carrier, world: int) -> float:
        """Seconds of a step."""
        jobs, host = self.jobs(step, network, world), step.host
        if host is not None:
            replay = self.at(world)
            calls = [sum(moved[kind].count * network.issue(kind) for kind in moved) for moved in replay.moved]
            host = replace(host, issues=[own + more for own, more in zip(replay.host, calls, strict=True)])
        return play(step.compute, step.threads, step.cores, step.ready, jobs, host, urgent=host is not None)

    def codec_seconds(self, step: Step, world: int) -> float:
        """Processor seconds of a step's encoding, decoding and machinery."""
        return sum(self.at(world).codec) * sum(step.numbers) * step.add


def phases(
    codec: float, moved: Mapping[str, Tally], network: Carrier, world: int, axes: Mapping[str, int] | None = None
) -> list[Phase]:
    """A bucket's phases: half of its codec, what it moves, the other half.

    Args:
        codec: processor seconds of encoding, decoding and copies.
        moved: its collectives, by kind.
        network: that carries them.
        world: workers.
        axes: and how many of them along each axis.
    """
    half = (codec / 2, codec / 2)
    pairs = [half]
    for kind, tally in moved.items():
        axis = split_kind(kind)[2]
        pairs += [network.move(kind, tally, (axes or {})[axis] if axis else world), (0.0, 0.0)]
    return [*pairs[:-1], half] if moved else [(codec, codec)]


def share_out(per_step: Mapping[str, Tally], shares: Sequence[float]) -> list[dict[str, Tally]]:
    """The collectives of each bucket, from those of a whole step: equally many in each, with its share of the bytes."""
    return [
        {kind: Tally(tally.count / len(shares), share * tally.bytes) for kind, tally in per_step.items()}
        for share in shares
    ]


def infer(replays: Sequence[Replay], world: int) -> Replay:
    """The replay of more workers, inferred from these."""
    worlds = np.array([replay.world for replay in replays], dtype=float)
    line = np.stack([np.ones_like(worlds), worlds], axis=1)
    curve = np.stack([np.ones_like(worlds), 1 / worlds, worlds], axis=1)
    there, bent = np.array([1.0, world]), np.array([1.0, 1 / world, world])

    def fit(matrix: np.ndarray, at: np.ndarray, values: Sequence[float]) -> float:
        line = np.linalg.lstsq(matrix, np.array(values), rcond=None)[0]
        return max(0.0, float(at @ line))

    codec = tuple(
        max(fit(line, there, values), *values[-1:])
        for values in zip(*(replay.codec for replay in replays), strict=True)
    )
    moved = []
    for buckets in zip(*(replay.moved for replay in replays), strict=True):
        kinds = dict.fromkeys(kind for bucket in buckets for kind in bucket)
        bucket = {}
        for kind in kinds:
            tallies = [bucket.get(kind, Tally()) for bucket in buckets]
            bucket[kind] = Tally(
                fit(line, there, [tally.count for tally in tallies]),
                fit(curve, bent, [tally.bytes for tally in tallies]),
            )
        moved.append(bucket)
    axes = {axis: size * world // replays[-1].world if size != replays[0].axes[axis] else size
            for axis, size in replays[-1].axes.items()}  # fmt: skip
    sent = 0.0
    for bucket in moved:
        for kind, tally in bucket.items():
            axis = split_kind(kind)[2]
            if tally.count:
                sent += tally.count * wire_bytes(kind, tally.bytes / tally.count, axes[axis] if axis else world)
    return Replay(world, codec, tuple(moved), sent, all(replay.whole for replay in replays), axes,
                  replays[-1].host)  # fmt: skip
