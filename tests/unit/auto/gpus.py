"""GPUs of virtual time, each with a host of its own and a link: handles under ``auto`` train on them between threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from grace.auto import calibrate, device
from grace.auto.device import GPUFacts
from grace.auto.settings import Auto
from grace.auto.site import Site
from grace.collectives import AllGather, AllReduce, AllToAll, Collective, Exchange, kind_of
from grace.contract.method import Method
from grace.predict import rates
from grace.predict.ways import ToAll
from grace.registry import spell
from grace.run.session import Session
from tests.patience import PATIENCE
from tests.unit.auto.handles import KINDS, LIKE, MS, NUMBERS, Handle
from tests.unit.run.test_lane import Reluctant, Stream

Factor = Callable[[str, int, int], float]  # times what a method's collective usually takes: method, step, rank
COMPILES = 2_000 * MS
WIDTHS = {
    "none": 256.0,
    "bf16": 128.0,
    "topk": 8.0,
    "qsgd:bits=4": 32.0,
}  # bytes of a number, each of which stands for 64
METHODS = {kind: method for method, kind in KINDS.items()}
_here = threading.local()


@dataclass(frozen=True)
class Machine:
    """Times of a device, its host and its link, in milliseconds; of a method that is not there, 0.

    link: of the bytes of one bucket of 4,160 numbers, by method. latency: of a collective. call: of the host for each, issue:
    of the host for a bucket, and for each tensor, by method. codec: of the device before and after the collective, a + b n for
    a bucket of n times 4,160 numbers, by method. compute: of a step of the model. host: of the host's own, for each bucket.
    ahead: steps that the host is ahead of the device at most; 1: it waits for each.
    """

    link: Mapping[str, float]
    latency: float = 0.02
    call: float = 0.03
    issue: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    codec: Mapping[str, tuple[tuple[float, float], tuple[float, float]]] = field(default_factory=dict)
    compute: float = 20.0
    host: float = 0.2
    ahead: int = 3

    def moving(self, method: str, size: float) -> float:
        """A collective of so many bytes."""
        return self.latency + self.link[method] * size / (WIDTHS[method] * NUMBERS)

    def issuing(self, method: str, tensors: int) -> float:
        """The host's, without the call of the collective."""
        start, each = self.issue.get(method, (0.0, 0.0))
        return start + each * tensors

    def coding(self, method: str, numbers: int) -> list[float]:
        """The device's, before and after the collective."""
        return [start + each * numbers / NUMBERS for start, each in self.codec.get(method, ((0.0, 0.0), (0.0, 0.0)))]


class Timed(Reluctant):
    """Streams whose work takes known times. ``now``: the host's clock. ``waited``: how long the host has waited for marks.
    Codecs are urgent: meanwhile the main stream stands still.
    """

    def __init__(self) -> None:
        self.times: dict[Stream, int] = {}
        self._happened: dict[tuple[Stream, int], int] = {}
        self._codecs: list[tuple[int, int]] = []
        super().__init__()
        self.now = 0
        self.waited: list[int] = []
        self.adopt()

    def make(self, name: str = "own") -> Stream:
        stream = super().make(name)
        self.times[stream] = 0
        return stream

    def busy(self, milliseconds: float, begins: int = 0, codec: bool = False) -> None:
        """Submits work to the current stream, which begins not before so late."""
        stream, begins, left = self.current(), max(begins, self.now), round(milliseconds * MS)

        def work() -> None:
            at = max(self.times[stream], begins)
            self.times[stream] = self._past_codecs(at, left) if stream is self.main else at + left
            if codec and stream is not self.main:
                self._codecs.append((at, at + left))

        self.launch(work)
        self.synchronize(stream)  # when it is played changes no time

    def _past_codecs(self, at: int, left: int) -> int:
        """The end of work on the main stream."""
        self._codecs = sorted(pair for pair in self._codecs if pair[1] > at)
        for begin, end in self._codecs:
            if at + left <= begin:
                break
            left -= max(0, begin - at)
            at = max(at, end)
        return at + left

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

    def hold(self, nanoseconds: int) -> None:
        self.busy(nanoseconds / MS)


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


class Virtual(ToAll):
    """Exchanges of virtual codecs."""

    def exchange(self, worker: Any, method: Method[Any], xs: Mapping[str, torch.Tensor]) -> Exchange[None]:
        name, numbers = spell(method), sum(x.numel() for x in xs.values())
        handle = _here.handle
        handle.compile(name, step=False)
        handle.gpu.now += round(MS * handle.machine.issuing(name, len(xs)))
        before, after = handle.machine.coding(name, numbers)
        handle.gpu.busy(before)
        yield _collective(name, numbers)
        handle.gpu.busy(after)

    def traffic(self, method: Method[Any], shape: Sequence[int], peer: Any) -> None:
        return None


def _collective(method: str, numbers: int) -> Collective:
    buf = torch.zeros(2, round(numbers * WIDTHS[method]) // 2, dtype=torch.uint8)
    if method in ("none", "bf16"):
        return AllReduce(buf.view(-1).view(torch.float32 if method == "none" else torch.bfloat16), "sum")
    return AllGather(buf.view(-1)) if method == "topk" else AllToAll(buf)


class Linked:
    """A network whose collectives take virtual time."""

    def __init__(self, transport: Any):
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def run(self, op: Collective) -> torch.Tensor:
        handle = _here.handle
        handle.gpu.now += round(MS * handle.machine.call)
        handle.move(METHODS.get(kind_of(op), "none"), op.buf.numel() * op.buf.element_size())
        answer: torch.Tensor = self._transport.run(op)
        return answer


class Counting:
    """Steps whose exchanges take virtual time only."""

    def __init__(self, session: Session):
        self.session = session

    def step(self, tensors: Any, *, last: bool, into: Any = None, flags: Any = None) -> dict[str, Any]:
        if last:
            self.session.advance()
        return {}


class OnGPU(Handle):
    """A rank's training on a GPU of virtual time. factor: see above. compiles: steps with each method that compile, of methods
    with ``only`` in their names. kernels: exchanges of each that is measured, likewise. real: whether gradients are exchanged.
    """

    def __init__(
        self, transport: Any, auto: Auto | str | None, meeting: Meeting, machine: Machine, *, method: str = "none",
        factor: Factor = lambda method, step, rank: 1.0, place: str | None = None, problem: str = "", free: int = 1 << 40,
        compiles: int = 0, kernels: int = 0, only: str = "", real: bool = False,
    ):  # fmt: skip
        self.machine, self._factor, self._meeting, self._place = machine, factor, meeting, transport.rank
        self.gpu = self._streams = Timed()
        self._own = self.gpu.make()
        self._facts = GPUFacts(place or f"gpu {transport.rank}", "Virtual GPU", problem, free)
        self._only, self._compiles, self._kernels, self.compiled, self.compiled_steps = only, compiles, kernels, 0, 0
        self._steps_seen, self._exchanges_seen = dict[str, int](), dict[str, int]()
        self._ends: list[int] = []
        self.periods: list[int] = []
        _here.handle = self
        super().__init__(Linked(transport), auto, method)
        self._began = max(self.gpu.times.values())
        if not real:
            self._steps = Counting(self._session)  # type: ignore[assignment]

    def _time(self) -> int:
        return self.gpu.now

    def _site(self) -> Site:
        return replace(super()._site(), device=torch.device("cuda", 0), way=Virtual())

    def play(self, steps: int, compute: Callable[[int, int], float] = lambda step, rank: 1.0) -> None:
        """Trains. compute: times what the model usually takes: step, rank."""
        gpu, own, main, machine = self.gpu, self._own, self.gpu.main, self.machine
        zeros = {name: torch.linspace(-1, 1, x.numel()).view(x.shape) for name, x in LIKE.items()}
        for _ in range(steps):
            if len(self._ends) >= machine.ahead:
                gpu.now = max(gpu.now, self._ends[-machine.ahead])
            for k, names in enumerate(self.buckets):
                gpu.now += round(machine.host * MS)
                gpu.busy(machine.compute * compute(self.step, self.rank) / len(self.buckets))
                gradients = {name: zeros[name] for name in names}
                self._comes(gradients)
                last = k == len(self.buckets) - 1
                if last:
                    self.compile(self.method_of("second"), step=True)
                    self.used.append(self.method_of("second"))
                gpu.wait(own, gpu.record(main))
                with gpu.use(own):
                    self._exchange_virtually(names)
                    if last:
                        before = self._ends[-1] if self._ends else 0
                        self._ends.append(gpu.times[own])
                        self.periods.append(gpu.times[own] - before)
                    self._exchange_bucket(gradients, last)
            gpu.wait(main, gpu.record(own))
            self.step += 1

    def _exchange_virtually(self, names: Sequence[str]) -> None:
        """The host issues a bucket, and the device exchanges it, what has one method as one."""
        groups: dict[str, list[str]] = {}
        for name in names:
            groups.setdefault(self.method_of(name), []).append(name)
        for method, members in groups.items():
            self.gpu.now += round(MS * (self.machine.issuing(method, len(members)) + self.machine.call))
        for method, members in groups.items():
            numbers = sum(LIKE[name].numel() for name in members)
            before, after = self.machine.coding(method, numbers)
            self.gpu.busy(before, codec=True)
            self.move(method, numbers * WIDTHS[method])
            self.gpu.busy(after, codec=True)

    def move(self, method: str, size: float) -> None:
        """A collective of so many bytes, on the current stream."""
        begins = self._meeting.latest(self._place, max(self.gpu.now, self.gpu.times[self.gpu.current()]))
        factor = self._factor(method, getattr(self, "step", 0), self._place)
        self.gpu.busy(self.machine.moving(method, size) * factor, begins)

    def compile(self, method: str, *, step: bool) -> None:
        """Compiles, in the first steps or measured exchanges with a method."""
        seen, most = (self._steps_seen, self._compiles) if step else (self._exchanges_seen, self._kernels)
        if seen.setdefault(method, 0) < most and self._only in method:
            seen[method] += 1
            self.compiled += 1
            self.compiled_steps += step
            self.gpu.now += COMPILES

    @property
    def seconds(self) -> float:
        """Seconds of the device's steps, without those that compiled."""
        return (self._ends[-1] - self._began - self.compiled_steps * COMPILES) / 1e9


def find_facts(_: torch.device) -> GPUFacts:
    return _here.handle._facts


def count_compiled() -> int:
    handle = getattr(_here, "handle", None)
    return 0 if handle is None else handle.compiled


@pytest.fixture(autouse=True)
def virtual(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs of virtual time in place of CUDA's."""
    monkeypatch.setattr(device, "find_facts", find_facts)
    monkeypatch.setattr(device, "count_compiled", count_compiled)
    monkeypatch.setattr(rates, "count_compiled", count_compiled)
    monkeypatch.setattr(calibrate, "SLOW_NS", 10**6)  # virtual numbers are few
    monkeypatch.setattr(rates, "ON_DEVICE", (1 << 12, 1 << 13))


def steady(handles: Sequence[OnGPU]) -> float:
    """Milliseconds of a step at the end."""
    last = sorted(handles[0].periods[-20:])
    return last[len(last) // 2] / MS
