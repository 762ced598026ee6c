"""GPUs of virtual time, each with a host of its own: handles under ``auto`` train on them between threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from grace.auto import device
from grace.auto.device import GPUFacts
from grace.auto.settings import Auto
from grace.auto.site import Site
from grace.run.session import Session
from tests.patience import PATIENCE
from tests.unit.auto.handles import LIKE, MS, Handle
from tests.unit.run.test_lane import Reluctant, Stream

Exchange = Callable[[str, int, int], float]  # milliseconds of a bucket's exchange: method, step, rank
COMPILES = 2_000 * MS
_here = threading.local()


class Timed(Reluctant):
    """Streams whose work takes known times. ``now``: the host's clock. ``waited``: how long the host has waited for marks."""

    def __init__(self) -> None:
        self.times: dict[Stream, int] = {}
        self._happened: dict[tuple[Stream, int], int] = {}
        super().__init__()
        self.now = 0
        self.waited: list[int] = []
        self.adopt()

    def make(self, name: str = "own") -> Stream:
        stream = super().make(name)
        self.times[stream] = 0
        return stream

    def busy(self, nanoseconds: float, begins: int = 0) -> None:
        """Submits work to the current stream, which begins not before so late."""
        stream, begins = self.current(), max(begins, self.now)

        def work() -> None:
            self.times[stream] = max(self.times[stream], begins) + round(nanoseconds)

        self.launch(work)
        self.synchronize(stream)  # when it is played changes no time

    def record(self, stream: Stream) -> tuple[Stream, int]:
        event = super().record(stream)
        self._happened[event] = self.times[stream]
        return event

    def wait(self, stream: Stream, event: tuple[Stream, int]) -> None:
        super().wait(stream, event)
        stream.queue.append(lambda: self.times.__setitem__(stream, max(self.times[stream], self._happened[event])))
        self.synchronize(stream)

    def mark(self, stream: Stream) -> int:
        return self._happened[self.record(stream)]

    def between(self, first: int, last: int) -> int | None:
        return last - first if last <= self.now else None

    def wait_here(self, mark: int) -> None:
        if mark > self.now:
            self.waited.append(mark - self.now)
            self.now = mark


class Meeting:
    """Ranks begin a collective when the last one has come."""

    def __init__(self, world: int):
        self._times = [0] * world
        self._barrier = threading.Barrier(world, timeout=PATIENCE)

    def latest(self, rank: int, time: int) -> int:
        self._times[rank] = time
        self._barrier.wait()
        latest = max(self._times)
        self._barrier.wait()
        return latest


class Counting:
    """Steps whose exchanges take virtual time only."""

    def __init__(self, session: Session):
        self.session = session

    def step(self, tensors: Any, *, last: bool, into: Any = None, flags: Any = None) -> dict[str, Any]:
        if last:
            self.session.advance()
        return {}


class OnGPU(Handle):
    """A rank's training on a GPU of virtual time. compute: milliseconds of a step of the model on the device. host: of the
    host, for each bucket. ahead: steps that the host is ahead of the device at most. real: whether gradients are
    exchanged.
    """

    def __init__(
        self, transport: Any, auto: Auto | str | None, meeting: Meeting, *, compute: float = 20.0, host: float = 0.2,
        ahead: int = 3, place: str | None = None, problem: str = "", free: int = 1 << 40, compiles: int = 0,
        only: str = "", real: bool = False,
    ):  # fmt: skip
        self._streams: Timed = Timed()
        self._own = self._streams.make()
        self._meeting, self._host, self._ahead = meeting, host, ahead
        self._facts = GPUFacts(place or f"gpu {transport.rank}", "Virtual GPU", problem, free)
        self._only = only
        self._compiles, self._seen, self._ends, self.compiled = compiles, dict[str, int](), list[int](), 0
        self.periods: list[int] = []
        _here.handle = self
        super().__init__(transport, auto)
        self._clock = lambda: self._streams.now
        self._driver.clock = self._clock  # type: ignore[union-attr]
        self.gpu_ms = compute
        if not real:
            self._steps = Counting(self._session)  # type: ignore[assignment]

    def _site(self) -> Site:
        return replace(super()._site(), device=torch.device("cuda", 0))

    def play(
        self, steps: int, exchange: Exchange, compute: Callable[[int, int], float] = lambda step, rank: 1.0
    ) -> None:
        """Trains. exchange: see above. compute: times what the model usually takes: step, rank."""
        gpu, own, main = self._streams, self._own, self._streams.main
        zeros = {name: torch.linspace(-1, 1, x.numel()).view(x.shape) for name, x in LIKE.items()}
        for _ in range(steps):
            if len(self._ends) >= self._ahead:
                gpu.now = max(gpu.now, self._ends[-self._ahead])
            for k, names in enumerate(self.buckets):
                gpu.now += round(self._host * MS)
                gpu.busy(self.gpu_ms * compute(self.step, self.rank) * MS / len(self.buckets))
                gradients = {name: zeros[name] for name in names}
                self._comes(gradients)
                method, last = self.method_of("second"), k == len(self.buckets) - 1
                if last:
                    self._compile(method)
                    self.used.append(method)
                gpu.wait(own, gpu.record(main))
                with gpu.use(own):
                    begins = max(gpu.now, gpu.times[own])
                    if last:
                        begins = self._meeting.latest(self.rank, begins)
                    gpu.busy(exchange(method, self.step, self.rank) * MS, begins)
                    if last:
                        before = self._ends[-1] if self._ends else 0
                        self._ends.append(gpu.times[own])
                        self.periods.append(gpu.times[own] - before)
                    self._exchange_bucket(gradients, last)
            gpu.wait(main, gpu.record(own))
            self.step += 1

    def _compile(self, method: str) -> None:
        """Compiles in the first steps with a method."""
        if self._seen.setdefault(method, 0) < self._compiles and self._only in method:
            self._seen[method] += 1
            self.compiled += 1
            self._streams.now += COMPILES

    @property
    def seconds(self) -> float:
        """Seconds of the device since the beginning, without those of steps that compiled."""
        return (self._ends[-1] - self.compiled * COMPILES) / 1e9


def find_facts(_: torch.device) -> GPUFacts:
    return _here.handle._facts


def count_compiled() -> int:
    return _here.handle.compiled


@pytest.fixture(autouse=True)
def virtual(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs of virtual time in place of CUDA's."""
    monkeypatch.setattr(device, "find_facts", find_facts)
    monkeypatch.setattr(device, "count_compiled", count_compiled)


def of(each: dict[str, float]) -> Exchange:
    return lambda method, step, rank: each[method]


def steady(handles: Sequence[OnGPU]) -> float:
    """Milliseconds of a step at the end."""
    last = sorted(handles[0].periods[-20:])
    return last[len(last) // 2] / MS
