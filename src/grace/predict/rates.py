"""The time of a method's codec for each number, and the bytes that it moves: exchanges of one tensor of a few sizes, replayed.

Where a whole model's exchange would cost too much (:mod:`grace.predict.replay`), two sizes tell: between its collectives a
method computes for about ``a + b n`` seconds, and each of them moves about ``a + b n`` bytes. On a GPU these are the device's
seconds, and issuing a bucket of T tensors takes its host about ``a + b T`` besides, which a bucket of several tensors tells.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from grace.collectives import Collective, Tally, kind_of, split_kind
from grace.compute import resources
from grace.compute.launching import count_compiled
from grace.contract.method import Method
from grace.contract.peer import Peer
from grace.grid import Grid
from grace.predict.costs import Carrier
from grace.predict.probe import Meter, middle
from grace.predict.replay import Echo, heavy_tailed
from grace.predict.timeline import Phase
from grace.predict.ways import TO_ALL, Way
from grace.registry.policy import Policy
from grace.run.drive import drive
from grace.run.options import Options
from grace.run.worker import Worker

NUMBERS = (1 << 14, 1 << 20)  # of the two tensors
ON_DEVICE = (1 << 14, 1 << 23)  # of those on a GPU, for which the larger one is but a few microseconds' work
TENSORS = 8  # of a bucket that tells what tensors cost the host
_COMPILES = 4  # exchanges that compile kernels, beyond those that come before
TRACED = 1 << 16  # numbers of the exchange that is counted where bytes depend on the data


@dataclass(frozen=True, slots=True)
class Sample:
    """A worker's exchange of a tensor of ``numbers``.

    codec: nanoseconds of the thread's processor before the first collective, between any two, and after the last; the
    median of some. moved: the kind and bytes of each collective, in their order. host: on a GPU, nanoseconds of its host, and
    then ``codec`` is of the device. tensors: that the numbers are divided among.
    """

    numbers: int
    codec: tuple[int, ...]
    moved: tuple[tuple[str, int], ...]
    host: int = 0
    tensors: int = 1

    @property
    def seconds(self) -> float:
        """Total of the codec."""
        return sum(self.codec) / 1e9


@dataclass(frozen=True, slots=True)
class Rate:
    """The work of one of ``world`` workers for a tensor of n numbers.

    codec: seconds a + b n before the first collective, between any two, and after the last, as pairs (a, b). moved: the kind
    of each collective and its bytes a + b n, as (kind, a, b). axes: of a grid, and how many workers there are along each.
    host: on a GPU, seconds a + b T of its host for a bucket of T tensors, without what collectives cost it; there a bucket's
    tensors go through the codec as one. None: on a processor, where each goes by itself.
    """

    world: int
    codec: tuple[tuple[float, float], ...]
    moved: tuple[tuple[str, float, float], ...]
    axes: Mapping[str, int] = field(default_factory=dict)
    host: tuple[float, float] | None = None

    @classmethod
    def through(
        cls, world: int, samples: Sequence[Sample], axes: Mapping[str, int] | None = None, bucket: Sample | None = None
    ) -> Rate:
        """The lines through two samples, the smaller first; of one sample, or of two that differ in their collectives, the
        line from nothing through the last. ``bucket``: on a GPU, one of several tensors, with as many numbers as the first.
        """
        first, last = samples[0], samples[-1]
        if [kind for kind, _ in first.moved] != [kind for kind, _ in last.moved]:
            first = last
        codec = tuple(
            _line((first.numbers, seconds / 1e9), (last.numbers, other / 1e9))
            for seconds, other in zip(first.codec, last.codec, strict=True)
        )
        moved = tuple(
            (kind, *_line((first.numbers, float(size)), (last.numbers, float(other))))
            for (kind, size), (_, other) in zip(first.moved, last.moved, strict=True)
        )
        host = None
        if bucket is not None:
            host = _line((1, samples[0].host / 1e9), (bucket.tensors, bucket.host / 1e9))
        return cls(world, codec, moved, axes or {}, host)

    def issue(self, tensors: int, network: Carrier) -> float:
        """Seconds of a GPU's host for a bucket of so many tensors: of the codec, and of the collectives."""
        start, each = self.host or (0.0, 0.0)
        seconds = start + each * tensors
        for kind, _, _ in self.moved:
            seconds += network.issue(kind)
        return seconds

    def seconds(self, numbers: int) -> float:
        """Processor seconds of the codec for one tensor of so many."""
        return sum(start + each * numbers for start, each in self.codec)

    def paced(self, times: float) -> Rate:
        """The same where the codec takes so many times as long."""
        return replace(self, codec=tuple((times * start, times * each) for start, each in self.codec))

    def phases(
        self, numbers: Sequence[int], network: Carrier, *, bytes_scale: float = 1.0, beside: int = 0
    ) -> list[Phase]:
        """The phases of a bucket of tensors of so many numbers, which travel together.

        Args:
            numbers: of each tensor.
            network: that carries them.
            bytes_scale: what the lines' bytes are multiplied by, where more is known of them; see :meth:`scale_to`.
            beside: bytes of other tensors that travel in the first collective.
        """
        total, count = sum(numbers), len(numbers)
        timeline: list[Phase] = []
        for k, (start, each) in enumerate(self.codec):
            seconds = start * (count if self.host is None else 1) + each * total
            timeline.append((seconds, seconds))
            if k < len(self.moved):
                kind, head, width = self.moved[k]
                axis = split_kind(kind)[2]
                tally = Tally(1, bytes_scale * (head * count + width * total) + (0 if k else beside))
                timeline.append(network.move(kind, tally, self.axes[axis] if axis else self.world))
        return timeline

    def scale_to(self, method: Method[Any], shapes: Sequence[Sequence[int]], way: Way = TO_ALL) -> float:
        """The factor between the lines' bytes and those that the method declares for tensors of these shapes, exchanged in
        this way: bytes of matrix methods follow rows and columns, not numbers. 1 where bytes depend on the data.
        """
        peer = Peer(0, self.world, axes=Grid(self.axes).place(0) if self.axes else {})
        declared = guessed = 0.0
        for shape in shapes:
            size = math.prod(shape)
            known, usual = (_declared(method, form, peer, way) for form in (tuple(shape), _matrix(size)))
            if known is None or usual is None:
                return 1.0
            declared, guessed = declared + known, guessed + usual
        return declared / guessed if guessed else 1.0


class Rater:
    """Replays exchanges of one tensor. Keeps its buffers between methods.

    Args:
        samples: exchanges that are timed, >= 1. warm: that come before, and make memories and workspaces.
        way: of the exchange.
        meter: of codecs; None: on this thread's processor.

    ``numbers`` are the sizes that tell. ``compiling``: nanoseconds of exchanges for which kernels were compiled, none of which
    is timed.
    """

    def __init__(self, samples: int = 3, warm: int = 1, way: Way = TO_ALL, meter: Meter | None = None):
        self.samples, self.warm, self.way, self.meter = samples, warm, way, meter or Meter()
        self.numbers = ON_DEVICE if self.meter.ahead else NUMBERS
        self.compiling = 0
        self._sources: dict[int, Tensor] = {}

    def run(
        self, method: Method[Any] | str, world: int, numbers: int, patience: float = math.inf, tensors: int = 1
    ) -> Sample:
        """Exchange of so many numbers by one worker, among ``world``, with whatever memory the method has; the first alone if
        it takes more seconds than ``patience``. ``tensors``: that they are divided among.
        """
        policy = Policy([("*", method)])
        sizes = dict(policy.axes(world))
        axes = Grid(sizes).place(0) if sizes else {}
        meter, shape = self.meter, _matrix(numbers // tensors)
        if numbers not in self._sources:
            self._sources[numbers] = heavy_tailed(numbers).to(meter.device)
        xs = {f"weight{k}": torch.empty(shape, dtype=torch.float32, device=meter.device) for k in range(tensors)}
        size = math.prod(shape)
        given = self._sources[numbers][: size * tensors].view(tensors, *shape)
        with resources.threads(1), warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            worker = Worker(policy, 0, world, Options(steps_per_epoch=1000), axes=axes)
            samples, hosts = list[list[int]](), list[int]()
            come, compiles = 0, 0  # exchanges before those that are timed, and those of them that have compiled
            while len(samples) < self.samples:
                for x, part in zip(xs.values(), given, strict=True):
                    x.copy_(part)
                compiled, begin = count_compiled(), time.perf_counter_ns()
                meter.hold()
                watch = _Watch(Echo(world, sizes), meter)
                drive(self.way.exchange(worker, policy.method_for("weight0", xs["weight0"], 0), xs), watch)
                parts, host = watch.end()
                worker.workspace.reset()
                worker.advance()
                if meter.ahead and count_compiled() != compiled and compiles < self.warm + _COMPILES:
                    self.compiling += time.perf_counter_ns() - begin
                    compiles += 1
                elif come >= self.warm:
                    samples.append(parts)
                    hosts.append(host)
                else:
                    come += 1
                    if sum(parts) > patience * 1e9:
                        samples, hosts = [parts], [host]
                        break
        codec = tuple(int(middle(column)) for column in zip(*samples, strict=True))
        spent = int(middle(hosts)) if meter.ahead else 0
        return Sample(size * tensors, codec, tuple(watch.moved), spent, tensors)


class _Watch:
    """A network that notes when it is asked, and when it has answered."""

    def __init__(self, echo: Echo, meter: Meter):
        self.echo, self.moved, self._meter = echo, list[tuple[str, int]](), meter
        self._answering, self._began = 0, meter.spent()
        self.marks = [meter.work()]

    def run(self, op: Collective) -> Tensor:
        self.marks.append(self._meter.work())
        self.moved.append((kind_of(op), op.buf.numel() * op.buf.element_size()))
        start = self._meter.spent()
        answer = self.echo.run(op)
        self._answering += self._meter.spent() - start
        self.marks.append(self._meter.work())
        return answer

    def end(self) -> tuple[list[int], int]:
        """Nanoseconds of each part of the codec, and those of the host, without answers."""
        self.marks.append(self._meter.work())
        host = self._meter.spent() - self._began - self._answering
        pairs = list(zip(self.marks[::2], self.marks[1::2], strict=True))[::-1]
        return [self._meter.between(start, end) for start, end in pairs][::-1], host


def moved_by(method: Method[Any], numbers: int, world: int) -> dict[str, Tally]:
    """The collectives of one exchange of a square matrix of so many numbers, by kind, for rank 0 of ``world``. Bytes are those
    that the method declares; where they depend on the data, those of an exchange of 65,536 heavy-tailed numbers, scaled up.
    """
    small = min(numbers, TRACED)
    sample = Rater(samples=1, warm=0).run(method, world, small)
    peer = Peer(0, world)
    known, traced = _declared(method, _matrix(numbers), peer), _declared(method, _matrix(small), peer)
    scale = numbers / small if known is None or not traced else known / traced
    tallies: dict[str, Tally] = {}
    for kind, size in sample.moved:
        tallies.setdefault(kind, Tally()).add(Tally(1, size * scale))
    return tallies


def _declared(method: Method[Any], shape: tuple[int, ...], peer: Peer, way: Way = TO_ALL) -> float | None:
    traffic = way.traffic(method, shape, peer)
    return None if traffic is None else float(traffic.sent)


def _matrix(numbers: int) -> tuple[int, int]:
    """A nearly square shape of so many numbers, or a few less."""
    side = math.isqrt(numbers)
    return side, numbers // side


def _line(first: tuple[int, float], last: tuple[int, float]) -> tuple[float, float]:
    """(a, b) of ``a + b n`` through two points (n, value), neither of them negative."""
    (m, low), (n, high) = first, last
    if m == n:
        return 0.0, high / n
    each = max(0.0, (high - low) / (n - m))
    return max(0.0, low - each * m), each
