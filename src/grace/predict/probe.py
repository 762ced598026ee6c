"""Measured costs of collectives on this network: :class:`Probe` asks a transport, :class:`Timings` keeps what it found.

The training itself has no part in it: each kind of collective is timed alone, on buffers of zeros, by the workers of a job
and over their transport, whichever that is. Each kind has a latency (a buffer of four bytes), seconds for some sizes, and
processor time per byte, because moving bytes takes a share of the cores from the model.

On a GPU both are the device's and the host's: seconds are those between two marks on a stream, and what a collective costs
the host that issues it is a number of its own. :class:`Meter` and :class:`DeviceMeter` are the clocks of the two.

Workers decide alike: what each has measured, in whole nanoseconds, goes to all of them in one all-gather, and all that follows
is a function of that.
"""

from __future__ import annotations

import bisect
import collections
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from grace.collectives import AllGather, AllReduce, AllToAll, Broadcast, Collective, Permute, ReduceScatter, split_kind
from grace.errors import ConfigurationError
from grace.predict.links import UNSHAPED, Link
from grace.predict.timeline import hops, wire_bytes
from grace.run.streams import Streams
from grace.transports.base import Transport, find_axes

SIZES = (4, 1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24, 1 << 26)  # bytes of a buffer; gloo changes its ways at some MB
_SMALL = SIZES[1]  # below, latency is all
_NEAR = 0.05  # sizes that differ by no more are one
_COPIED = 16 << 20  # bytes
_CPU = torch.device("cpu")
_HELD_NS, _MOST_HELD_NS = (
    1_000_000,
    50_000_000,
)  # for which a stream is held back at least, and what a run may take to submit
_Make: TypeAlias = Callable[[Tensor, int, str], Collective]

_MAKERS: dict[str, _Make] = {
    "AllReduce": lambda buf, world, axis: AllReduce(buf, "sum", donate=True, axis=axis),
    "AllGather": lambda buf, world, axis: AllGather(buf, axis),
    "AllToAll": lambda buf, world, axis: AllToAll(_rows(buf, world), axis),
    "ReduceScatter": lambda buf, world, axis: ReduceScatter(_rows(buf, world), "sum", axis),
    "Broadcast": lambda buf, world, axis: Broadcast(buf, axis=axis),
    "Permute": lambda buf, world, axis: Permute(buf, ((0, world - 1),), axis),
}


def _rows(buf: Tensor, world: int) -> Tensor:
    return buf.view(-1)[: buf.numel() // world * world].view(world, -1)


def middle(values: Sequence[float]) -> float:
    """The median, and of an even number the larger of the two in the middle: always one of the values."""
    return sorted(values)[len(values) // 2]


class Meter:
    """A clock of what is measured alone, on a processor."""

    device = _CPU  # of what is measured
    times = 1  # that a small collective is run between two moments
    ahead = False  # whether the host only submits it

    def hold(self) -> None:
        """Something that is measured comes."""

    def moment(self) -> Any:
        """A moment of the wall's clock."""
        return time.perf_counter_ns()

    def work(self) -> Any:
        """A moment of work: what others do beside it takes none."""
        return time.thread_time_ns()

    def between(self, first: Any, last: Any) -> int:
        """Nanoseconds between two moments."""
        return int(last - first)

    def spent(self) -> int:
        """Nanoseconds that the processor has spent; on a GPU those of its host, on whatever."""
        return time.process_time_ns()


class DeviceMeter(Meter):
    """A clock of a device: moments are marks on the stream that this thread submits to.

    The stream is held back until the host has submitted what is measured, or marks would tell of the host: at least as long as
    three times what the last runs have taken to submit.

    Args:
        streams: of the device. device: where tensors are. clock: nanoseconds of the host, monotonic.
    """

    times, ahead = 10, True

    def __init__(self, streams: Streams, device: torch.device, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.device, self._streams, self._clock = device, streams, clock
        self._submits = collections.deque([0], maxlen=4)
        self._since: int | None = None

    def hold(self) -> None:
        self._streams.wait_here(self.moment())
        self._streams.hold(_HELD_NS + 3 * min(max(self._submits), _MOST_HELD_NS))
        self._since = self._clock()

    def moment(self) -> Any:
        return self._streams.mark(self._streams.current())

    work = moment

    def between(self, first: Any, last: Any) -> int:
        if self._since is not None:
            self._submits.append(self._clock() - self._since)
            self._since = None
        self._streams.wait_here(last)
        nanoseconds = self._streams.between(first, last)
        assert nanoseconds is not None, "it has happened"
        return nanoseconds

    def spent(self) -> int:
        return self._clock()


@dataclass(slots=True)
class Timing:
    """A kind of collective. sizes: bytes of the buffer, rising. seconds: of each. cpu: of one worker, for each byte.
    issue: seconds of a GPU's host, for each collective; the median of all sizes.

    A smaller buffer takes no longer than a larger one: where one was measured so, other work on the machine had a part in it,
    and it counts as long as the quickest that is larger.
    """

    sizes: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu: float = 0.0
    issue: float = 0.0

    @property
    def latency(self) -> float:
        """Seconds of a buffer of next to nothing."""
        return min(self.seconds)

    def at(self, size: float) -> float:
        """Seconds of one collective of so many bytes: between measured sizes on a line, beyond them on the last."""
        if len(self.sizes) == 1:
            return self.seconds[0]
        i = min(max(bisect.bisect_left(self.sizes, size), 1), len(self.sizes) - 1)
        low, high = min(self.seconds[i - 1 :]), min(self.seconds[i:])
        return max(self.latency, low + (high - low) / (self.sizes[i] - self.sizes[i - 1]) * (size - self.sizes[i - 1]))

    def put(self, size: int, seconds: float, cpu: float = 0.0) -> None:
        """Adds what one size took; of the largest, its processor seconds count."""
        at = bisect.bisect_left(self.sizes, size)
        self.sizes.insert(at, size)
        self.seconds.insert(at, seconds)
        if size >= _SMALL and at == len(self.sizes) - 1:
            self.cpu = cpu / size


@dataclass(slots=True)
class Timings:
    """The costs of collectives on one network.

    Attributes:
        link: of each worker. world: workers on it. cores: of all machines, which they share.
        kinds: the timing of each kind, as :func:`grace.collectives.kind_of` says it. copying: processor seconds per byte of a
            gradient that goes into its bucket. axes: places along each axis of a grid.
    """

    link: Link
    world: int
    cores: int
    kinds: dict[str, Timing] = field(default_factory=dict)
    copying: float = 0.0
    axes: Mapping[str, int] = field(default_factory=dict)

    def size_of(self, kind: str) -> int:
        """Number of workers that take part in a collective of this kind."""
        axis = split_kind(kind)[2]
        return self.axes[axis] if axis else self.world

    def seconds(self, kind: str, size: float, world: int | None = None, link: Link | None = None) -> float:
        """Seconds of one collective that nothing disturbs, here or with other workers and another link: ``hops (alpha +
        latency) + wire bytes x seconds per byte``. What it took beyond the line's own time scales with the link, and moving
        bytes never takes less than its processor time.

        Args:
            kind: has been measured.
            size: bytes of its buffer.
            world: workers that take part, each with the same share of cores as here; None: as many as here.
            link: the link; None: the one here. What goes along an axis goes over its own, which stays.
        """
        timing, count = self.kinds[kind], self.size_of(kind)
        here = timing.at(size)
        link = self.link if link is None or split_kind(kind)[2] else link
        world = count if world is None else world
        if world == count and link == self.link:
            return here
        latency = timing.latency
        alpha = max(0.0, latency / max(1, hops(kind, count)) - self.link.latency)
        moved = wire_bytes(kind, size, count)
        each = max(0.0, here - latency) / moved if moved else 0.0
        cpu = timing.cpu * size / moved * max(1.0, self.world / self.cores) if moved else 0.0
        line, line_here = link.seconds_per_byte, self.link.seconds_per_byte
        each = line * each / line_here if line and line_here else each
        return hops(kind, world) * (alpha + link.latency) + wire_bytes(kind, size, world) * max(each, line, cpu)


class Probe:
    """Measures a network. All workers must ask it in the same way, as asking sends.

    Args:
        transport: between the workers.
        cores: of all machines, which they share.
        link: the network, as far as it is known.
        most_seconds: that one collective of a size should take; larger sizes are then left out.
        repeats: how often a buffer of so many bytes is measured, once more not counted.
        beside: where other workers measure lines of their own at the same time, between this one and those at its place on
            these: all decide alike.
        device: of what is sent: a network may take tensors of one kind of device only. None: the meter's.
        meter: of collectives.

    ``timings`` is what has been found so far, ``last`` the nanoseconds of the last size on each rank, and ``spent`` those of
    all measurements on the slowest.
    """

    def __init__(
        self,
        transport: Transport,
        cores: int,
        link: Link = UNSHAPED,
        *,
        most_seconds: float = 0.6,
        repeats: Callable[[int], int] = lambda size: 3,
        beside: Transport | None = None,
        device: torch.device | None = None,
        meter: Meter | None = None,
    ):
        self.meter = meter or Meter()
        self.beside, self.device = beside, device or self.meter.device
        self.transport, self.most_seconds, self.repeats = transport, most_seconds, repeats
        axes = {axis: size for axis, (_, size) in find_axes(transport).items()}
        self.timings = Timings(link, transport.world, cores, axes=axes)
        self.last: list[int] = []
        self.spent = self._mine = 0
        self._issues: dict[str, list[float]] = {}  # seconds of the host, by kind
        self._quickest: dict[tuple[str, int], float] = {}  # of what was measured: no noise makes a collective quicker
        self._signal = torch.ones(1, dtype=torch.float32, device=self.device)

    def learn_copying(self) -> None:
        """Measures what DistributedDataParallel does with each gradient: scaling it into its bucket."""
        if self.timings.copying:
            return
        gradient = torch.ones(_COPIED // 4, dtype=torch.float32, device="cpu")
        bucket = torch.zeros_like(gradient)
        seconds = []
        self.meet()
        for _ in range(3):
            start = time.process_time()
            torch.mul(gradient, 0.5, out=bucket)
            seconds.append((time.process_time() - start) / _COPIED)
        self.timings.copying = middle(seconds)

    def learn(self, kind: str, size: float, sizes: Sequence[int] = SIZES) -> None:
        """Measures collectives of this kind at this size and at those of ``sizes`` that are smaller, unless that is done.

        Raises:
            ConfigurationError: there is no such kind.
            TransportError: the network failed.
        """
        name, _, axis = split_kind(kind)
        if name not in _MAKERS or (axis and axis not in self.timings.axes):
            raise ConfigurationError(
                f"there is no kind of collective {kind!r}; legal: {', '.join(_MAKERS)}, along {self.timings.axes or 'no axis'}"
            )
        timing = self.timings.kinds.setdefault(kind, Timing())
        whole = max(SIZES[0], int(-(-size // 4) * 4))
        for target in (*(least for least in sizes if least < size), whole):
            if any(abs(target - known) <= _NEAR * known for known in timing.sizes):
                continue
            if timing.sizes and self._estimate(kind, timing, target) > self.most_seconds:
                break
            seconds, spent = self._time(kind, target)
            if not self.meter.ahead:
                timing.put(target, seconds, spent)
                continue
            timing.put(target, seconds)
            issues = self._issues.setdefault(kind, [])
            issues.append(spent)
            timing.issue = middle(issues)

    def meet(self) -> None:
        """Returns when all workers have come."""
        self.transport.run(AllReduce(self._signal, "sum"))

    def all_gather_numbers(self, values: Sequence[int]) -> list[list[int]]:
        """Everyone's whole numbers, equally many, by rank; of several lines, by rank there, and then by line."""
        rows: list[list[int]] = gather_numbers(values, self.transport, self.beside, self.device).tolist()
        return rows

    def _estimate(self, kind: str, timing: Timing, size: int) -> float:
        """Seconds that so many bytes should take, by the slope of the last two sizes, each at its quickest: what a busy
        machine does to small ones, which are all latency, must not keep larger ones from being measured.
        """
        rate = self.timings.link.bits_per_second
        line = 0.0 if rate is None else 8 * size / rate
        if timing.sizes[-1] < _SMALL:
            return line
        points = list(zip(timing.sizes, timing.seconds, strict=True))[-2:]
        points = [(n, self._quickest.get((kind, n), seconds)) for n, seconds in points]
        (m, low), (n, high) = points if len(points) == 2 else [(0, 0.0), *points]
        return max(line, high + max(0.0, high - low) / (n - m) * (size - n))

    def _time(self, kind: str, size: int) -> tuple[float, float]:
        """Seconds (of the slowest worker; the median of some) and processor seconds (their mean; on a GPU the host) of one."""
        name, narrow, axis = split_kind(kind)
        count, repeats = self.timings.size_of(kind), self.repeats(size)
        width = 2 if narrow else 4
        buf = torch.zeros(
            max(count, size // width), dtype=torch.bfloat16 if narrow else torch.float32, device=self.device
        )
        meter, nanoseconds = self.meter, list[int]()
        times = meter.times if size <= _SMALL else 1
        begin = time.perf_counter_ns()
        for repeat in range(1 + repeats):
            meter.hold()
            self.meet()
            start, spent = meter.moment(), meter.spent()
            for _ in range(times):
                self.transport.run(_MAKERS[name](buf, count, axis))
            spent = meter.spent() - spent
            took = meter.between(start, meter.moment())
            if repeat:
                nanoseconds += [took // times, spent // times]
        self._mine += time.perf_counter_ns() - begin
        rows = self.all_gather_numbers([*nanoseconds, self._mine])
        self.spent = max(row[-1] for row in rows)
        walls = [[row[2 * k] for row in rows] for k in range(repeats)]
        cpus = [sum(row[2 * k + 1] for row in rows) / len(rows) for k in range(repeats)]
        self.last = [int(middle(row[: 2 * repeats : 2])) for row in rows]
        self._quickest[kind, size] = min(max(wall) for wall in walls) / 1e9
        return middle([max(wall) for wall in walls]) / 1e9, middle(cpus) / 1e9


def gather_numbers(
    values: Sequence[int], transport: Transport, beside: Transport | None = None, device: torch.device = _CPU
) -> Tensor:
    """Everyone's whole numbers, equally many, int64 ``[W, m]`` on the device, in the order of
    :meth:`Probe.all_gather_numbers`; the host does not wait for it, unless the transport does.
    """
    own = torch.tensor(list(values), dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda")
    rows = transport.run(AllGather(own.to(device, non_blocking=True)))  # [W, m]
    if beside is None:
        return rows
    lines = beside.run(AllGather(rows.reshape(-1)))  # [L, W m]
    return lines.view(len(lines), *rows.shape).transpose(0, 1).reshape(-1, rows.shape[-1])
