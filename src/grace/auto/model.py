"""The model's own step, measured in some of the first steps, in which exchanges do not disturb the backward pass.

There buckets are *held*: they are exchanged after the last one has come. Where that would take too much memory, the model
*waits* for each bucket's exchange instead, and that time is left out. And what each method loses of each gradient, measured
in one step.

On a GPU nothing is held: exchanges of fp32 take little from the model. :class:`DeviceClock` reads two clocks. The device's
says what the model computes, by marks where buckets come and exchanges end. The host's says when it comes to each bucket,
beside the device; and in the step after the two have met, in which the host waits for nothing that was before, what a step
takes of the host itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from grace.auto.calibrate import Told
from grace.contract.peer import Peer
from grace.errors import ConfigurationError
from grace.predict.probe import middle
from grace.predict.timeline import Host
from grace.predict.ways import TO_ALL, Way
from grace.registry import method as make_method
from grace.run.streams import Streams

STEPS = 5  # of the model, with buckets held
WARM = 3  # steps on a GPU that are not listened to: buckets are made anew, and libraries choose their algorithms
_MILLION, _MOST = 1_000_000, 1e3  # of a share, told as a whole number; the largest
_NEVER = 0.05  # of a step: a host that waits for less, before a bucket comes, waits for nothing


@dataclass(frozen=True, slots=True)
class Model:
    """The model's own step; the same on all ranks.

    Attributes:
        compute: seconds of a step without communication, the data loader and the optimizer included.
        ready: when each bucket is ready, as shares of that, counted from the end of the last exchange; rising, the last one 1.
        exposed: seconds from the last bucket to its mean while buckets were held, or those in which it waited.
        period: of those steps.
        computing, waiting: what each rank has measured: of ``compute``, and of the rest of the step.
        host: of a GPU, with what it took to issue exchanges while this was measured. None: a processor.
    """

    compute: float
    ready: tuple[float, ...]
    exposed: float
    period: float
    computing: Told
    waiting: Told
    host: Host | None = None


class StepClock:
    """Listens to steps while buckets are held.

    Call :meth:`ready` when a bucket comes, in the order of the buckets, and :meth:`exchanged` when the last mean is there;
    after :attr:`done`, :meth:`record` is what to tell all ranks, and :func:`model_of` makes a model of what all have told.

    Args:
        buckets: in a step.
        steps: that are measured; one more begins before them.
        clock: nanoseconds, monotonic.
    """

    def __init__(self, buckets: int, steps: int = STEPS, clock: Callable[[], int] = time.perf_counter_ns):
        if buckets < 1:
            raise ConfigurationError(f"StepClock: buckets={buckets}; legal: >= 1")
        self.buckets, self.steps, self.clock = buckets, steps, clock
        self._arrivals: list[int] = []
        self._waited = 0  # in this step, so far
        self._ended: int | None = None
        self._found: list[list[int]] = []  # of each step: computing, exposed, arrivals

    @property
    def done(self) -> bool:
        """True if enough steps were seen."""
        return len(self._found) >= self.steps

    def ready(self) -> bool:
        """A bucket has come; whether it is the last, so that all may go."""
        self._arrivals.append(self.clock() - self._waited)
        return len(self._arrivals) == self.buckets

    def began(self) -> None:
        """A step begins. What has come of one that was broken off counts for nothing, nor does the time since it began."""
        if self._arrivals:
            self._arrivals, self._waited, self._ended = [], 0, None

    def waited(self, nanoseconds: int) -> None:
        """The model stood still for so long, until the exchange of the bucket that came last was over."""
        self._waited += nanoseconds

    @property
    def left(self) -> int:
        """Number of steps that are still needed."""
        return self.steps - len(self._found) + (self._ended is None)

    def exchanged(self, counts: bool = True) -> None:
        """The last mean is there. Nothing is kept of a step with other buckets, of the first, of one that does not count."""
        now, arrivals, start = self.clock(), self._arrivals, self._ended
        self._arrivals, self._waited, self._ended = [], 0, now
        if start is not None and len(arrivals) == self.buckets and counts and not self.done:
            self._found.append([arrivals[-1] - start, now - arrivals[-1], *(at - start for at in arrivals)])

    def record(self) -> list[int]:
        """Medians in nanoseconds: computing, the rest of the step, and when each bucket came, if nothing had waited before."""
        return [int(middle(column)) for column in zip(*self._found, strict=True)]


class DeviceClock(StepClock):
    """Listens to steps of a GPU, of the plan that is used then: the same calls as those of a :class:`StepClock`.

    Args:
        buckets: in a step.
        streams: of the device. clock: nanoseconds of the host, monotonic.
        late: steps after which the host knows what one took.
        compiled: counts what was compiled: a step meanwhile does not count.
    """

    def __init__(
        self, buckets: int, streams: Streams, late: int, clock: Callable[[], int], compiled: Callable[[], int]
    ) -> None:
        super().__init__(buckets, STEPS, clock)
        self._streams, self._late, self._compiled = streams, late, compiled
        self._marks: list[Any] = []
        self._heard = 0
        self._before: tuple[int, Any, int] | None = None  # host, mark, and what was compiled when the last step ended
        self._met: tuple[int, Any] | None = None  # a moment of both clocks
        self._steps: list[tuple[list[int], list[Any]]] = []  # of each step that counts: moments of the host, and marks
        self._alone: list[int] = []  # the host's moments in the step after they have met, from its beginning on

    @property
    def left(self) -> int:
        """Number of steps that are still needed; those that do not count are not made up for."""
        return WARM + 1 + self.steps + self._late - self._heard

    @property
    def done(self) -> bool:
        """True if enough steps have ended."""
        return self.left <= 0

    def ready(self) -> bool:
        """A bucket has come; whether it is the last."""
        self._marks.append(self._streams.mark(self._streams.current()))
        return super().ready()

    def began(self) -> None:
        """A step begins. What has come of one that was broken off counts for nothing."""
        if self._arrivals:
            self._arrivals, self._marks, self._before = [], [], None

    def exchanged(self, counts: bool = True) -> None:
        """The last exchange is issued. The first steps do not count, nor what compiles; after them the two clocks meet."""
        self._heard += 1
        arrivals, marks, start = self._arrivals, self._marks, self._before
        self._arrivals, self._marks = [], []
        now, mark, compiled = self.clock(), self._streams.mark(self._streams.current()), self._compiled()
        legal = counts and start is not None and start[2] == compiled and len(arrivals) == self.buckets
        if start is not None and legal and self._met is not None:
            moments = [start[0], *arrivals, now]
            if not self._alone:
                self._alone = [at - start[0] for at in moments]
            elif len(self._steps) < self.steps:
                self._steps.append((moments, [start[1], *marks, mark]))
        if self._met is None and self._heard >= WARM and start is not None and start[2] == compiled:
            self._streams.wait_here(mark)
            now = self.clock()
            self._met = now, mark
        self._before = now, mark, compiled

    def record(self) -> list[int]:
        """Medians in nanoseconds: what a :class:`StepClock` tells, of the device; then of the host what a step takes of it
        itself, the most that it has waited before a bucket came, and when it came to each, from the beginning of the device's
        step; and the number of steps that were measured.
        """
        if self._met is None or not self._steps:
            return [0] * (5 + 2 * self.buckets)
        zero, met = self._met
        rows = []
        for moments, marks in self._steps:
            self._streams.wait_here(marks[-1])  # it was, two steps ago, but for the last ones
            start, *ready, end = [self._streams.between(met, mark) or 0 for mark in marks]
            rows.append([
                ready[-1] - start, end - ready[-1], *(at - start for at in ready),
                max(at - moments[0] - alone for at, alone in zip(moments[1:-1], self._alone[1:-1], strict=True)),
                *(at - zero - start for at in moments[1:-1]),
            ])  # fmt: skip
        medians = [int(middle(column)) for column in zip(*rows, strict=True)]
        return [*medians[: 2 + self.buckets], self._alone[-1], *medians[2 + self.buckets :], len(rows)]


def model_of(told: Sequence[Sequence[int]], issues: Sequence[float] | None = None) -> Model:
    """The model's step, from what all ranks have told: :meth:`StepClock.record`, by rank. ``issues``: of a
    :class:`DeviceClock`, seconds that the host takes to issue each bucket, as it was while it listened.
    """
    if issues is not None:
        host = _host_of(told, issues)
        return replace(model_of([row[: 2 + len(issues)] for row in told]), host=host)
    compute = max(1, *(row[0] for row in told))
    # who computes for longer waits for less: the shortest wait is that of the slowest, which all others wait for
    exposed = max(0, min(row[1] for row in told))
    ready: list[float] = []
    for k in range(2, len(told[0])):
        latest = max(row[k] for row in told) / compute
        ready.append(min(1.0, max(latest, ready[-1] if ready else 0.0)))
    ready[-1:] = [1.0]
    return Model(
        compute / 1e9, tuple(ready), exposed / 1e9, (compute + exposed) / 1e9,
        Told("the model", tuple(row[0] for row in told)), Told("waiting", tuple(row[1] for row in told)),
    )  # fmt: skip


def _host_of(told: Sequence[Sequence[int]], issues: Sequence[float]) -> Host:
    """The host's lane, of the slowest rank."""
    first = 2 + len(issues)
    period = max(row[0] + row[1] for row in told)
    own = max(row[first] for row in told) / 1e9
    for seconds in issues:
        own -= seconds
    arrives, before = list[float](), 0.0
    if max(row[first + 1] for row in told) >= _NEVER * period:
        for k, seconds in enumerate(issues):
            arrives.append(max(row[first + 2 + k] for row in told) / 1e9 - before)
            before += seconds
    return Host(max(0.0, own), tuple(arrives), tuple(issues))


class Losses:
    """Compression errors of each method for each tensor's gradient, as shares: ``of``. The largest of all ranks counts."""

    def __init__(self) -> None:
        self.of: dict[str, dict[str, float]] = {}

    def measure(
        self,
        gradients: Mapping[str, Tensor],
        methods: Sequence[str],
        peer: Callable[[str], Peer],
        way: Way = TO_ALL,
    ) -> None:
        """Measures the error of each method for these gradients, each of any shape, where they go this way. ``peer``: who
        this worker is in the exchange of a tensor of this name.
        """
        for name, x in gradients.items():
            for text in methods:
                lost = way.lost(make_method(text), x, peer(name))
                self.of.setdefault(text, {})[name] = float("inf") if lost is None else lost

    def share(
        self, names: Sequence[str], methods: Sequence[str], tell: Callable[[Sequence[int]], Sequence[Sequence[int]]]
    ) -> None:
        """All ranks take the largest of all. One that has no part of a tensor has measured nothing of it. ``tell`` tells all
        ranks whole numbers, and gives everyone's.
        """
        keys = [(text, name) for text in methods for name in names]
        losses = [self.of.get(text, {}).get(name, 0.0) for text, name in keys]
        rows = tell([int(_MILLION * min(_MOST, lost)) for lost in losses]) if keys else []
        for k, (text, name) in enumerate(keys):
            self.of.setdefault(text, {})[name] = max(row[k] for row in rows) / _MILLION
