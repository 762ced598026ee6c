"""Replay: one worker's exchange of a model's real shapes, against a network that answers as if all workers had sent the same.

For any method or policy, that gives the processor time of codec and machinery, and every collective with its bytes. Times
are multiples of one ``y.add_(x)`` over all numbers of the model, measured beside them, so a busy machine changes little.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from grace.collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Collective,
    Exchange,
    ReduceScatter,
    Tally,
    cost,
    kind_of,
)
from grace.compute import resources
from grace.contract.method import Method
from grace.contract.workspace import Workspace
from grace.grid import Grid
from grace.registry.policy import Policy
from grace.run.drive import drive
from grace.run.options import Options
from grace.run.worker import Worker

_WARM = 2  # exchanges until memories and workspaces exist
_PART, _LARGE = 8, 1 << 16  # one row of so many of tensors of so many numbers is tried first,
_HOPELESS = 4  # and of what takes so many times the patience by that, no more
_EVICTION = 64 << 20  # numbers of a buffer that empties the caches
_MOST_ROWS = 1 << 28  # bytes of a gathered answer: a larger one is a view, without its own memory


class Exchanging(Protocol):
    """The part of a :class:`grace.run.worker.Worker` that a replay needs: each outcome has a ``mean``."""

    world: int
    workspace: Workspace

    def exchange(self, tensors: Mapping[str, Tensor]) -> Exchange[Mapping[str, Any]]:
        """Exchanges tensors of any shapes, by name, all or some."""

    def advance(self) -> None:
        """The step has ended."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A step of one worker of ``world``.

    codec: processor time of encoding, decoding and machinery, in ``y.add_(x)`` of all numbers; of each bucket.
    moved: the collectives of each bucket, by kind. sent: bytes that this worker sends.
    whole: whether all buckets were exchanged; if not, the others were taken to cost as much for each number.
    axes: of the grid on which the workers lie, and how many there are along each.
    host: on a GPU, seconds of its host for issuing each bucket, without what collectives cost it; empty: a processor.
    """

    world: int
    codec: tuple[float, ...]
    moved: tuple[dict[str, Tally], ...]
    sent: float
    whole: bool = True
    axes: Mapping[str, int] = field(default_factory=dict)
    host: tuple[float, ...] = ()


@dataclass(slots=True)
class Echo:
    """A network that answers as if all workers had sent the same.

    world: how many there are. axes: and along each axis. cpu: processor seconds that answers took. sent: bytes. moved: its
    collectives by kind.
    """

    world: int
    axes: Mapping[str, int] = field(default_factory=dict)
    cpu: float = 0.0
    sent: float = 0.0
    moved: dict[str, Tally] = field(default_factory=dict)
    _rows: dict[tuple[Any, ...], Tensor] = field(default_factory=dict)

    def run(self, op: Collective) -> Tensor:
        """See :class:`grace.transports.base.Network`."""
        start = time.thread_time()
        self.moved.setdefault(kind_of(op), Tally()).see(op)
        world = self.axes[op.axis] if op.axis else self.world
        self.sent += cost(op, 0, world).sent
        answer = self._answer(op, world)
        self.cpu += time.thread_time() - start
        return answer

    def _answer(self, op: Collective, world: int) -> Tensor:
        buf = op.buf
        if isinstance(op, AllGather):
            shape = (world, *buf.shape)
            if op.into is not None:
                return op.into.copy_(buf.expand(shape))
            if world * buf.numel() * buf.element_size() > _MOST_ROWS:
                return buf.expand(shape)
            key = (shape, buf.dtype, buf.device)
            if key not in self._rows:
                self._rows[key] = torch.empty(shape, dtype=buf.dtype, device=buf.device)
            return self._rows[key].copy_(buf.expand(shape))
        if isinstance(op, AllToAll):
            return buf[:1].expand_as(buf).contiguous()
        if isinstance(op, AllReduce):
            times = world if op.op == "sum" else 1
            return buf.mul_(times) if op.donate else buf * times
        if isinstance(op, ReduceScatter):
            return buf[0] * (world if op.op == "sum" else 1)
        arrives = isinstance(op, Broadcast) or any(to == 0 for _, to in op.pairs)
        return buf if arrives else torch.zeros_like(buf)


def heavy_tailed(numbers: int) -> Tensor:
    """``randn * exp(randn)``: a few numbers are much larger than the others."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(numbers, generator=generator, dtype=torch.float32, device="cpu")
    return normal.mul_(torch.randn(numbers, generator=generator, dtype=torch.float32, device="cpu").exp_())


class Replayer:
    """Replays exchanges of one model. Keeps its memory between methods.

    Args:
        shapes: of the parameters, by name. buckets: their names, in the order in which buckets become ready.
        samples: exchanges that are timed, >= 1. patience: seconds of an exchange; of what takes longer, fewer buckets are
            measured, and of what takes many times as long, some rows of the first.
        budget: seconds after which a method is timed no more, once it has been.
    """

    def __init__(
        self,
        shapes: Mapping[str, Sequence[int]],
        buckets: Sequence[Sequence[str]],
        samples: int = 5,
        patience: float = 10.0,
        budget: float = 0.4,
    ):
        self.shapes, self.buckets = shapes, [list(names) for names in buckets]
        self.samples, self.patience, self.budget = samples, patience, budget
        numbers = {name: torch.Size(shapes[name]).numel() for names in buckets for name in names}
        self.numbers = [sum(numbers[name] for name in names) for names in self.buckets]
        total = sum(self.numbers)
        self._source = heavy_tailed(total)
        self._flat, self._y = (
            torch.empty(total, dtype=torch.float32, device="cpu"),
            torch.zeros(total, dtype=torch.float32, device="cpu"),
        )
        self._evict = torch.zeros(
            min(_EVICTION, max(resources.available_memory() // 16, 1 << 18)), dtype=torch.float32, device="cpu"
        )
        parts = torch.split(self._flat, [numbers[name] for names in self.buckets for name in names])
        names = [name for names in self.buckets for name in names]
        self._views = {name: part.view(tuple(shapes[name])) for name, part in zip(names, parts, strict=True)}
        self.adds: list[float] = []  # seconds of each y.add_(x) so far

    @property
    def add_seconds(self) -> float:
        """Processor seconds of one ``y.add_(x)`` over all numbers, in this run."""
        return statistics.median(self.adds)

    def run(self, method: Policy | Method[Any] | str, world: int) -> Replay:
        """Replays one worker's step under this method, among ``world``."""
        with resources.threads(1), warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            policy = Policy.of(method)
            sizes = dict(policy.axes(world))
            axes = Grid(sizes).place(0) if sizes else {}
            first, worker = (Worker(policy, 0, world, Options(steps_per_epoch=1000), axes=axes) for _ in range(2))
            return self._try_part(first, sizes) or self._run(worker, sizes)

    def run_worker(self, worker: Exchanging) -> Replay:
        """Replays a step of whoever exchanges as a worker does."""
        with resources.threads(1), torch.no_grad():
            return self._run(worker, {})

    def _run(self, worker: Exchanging, axes: Mapping[str, int]) -> Replay:
        world = worker.world
        first = {name: self._views[name] for name in self.buckets[0]}
        tasted = self._taste(worker, axes, first, self.patience)
        if tasted is not None:
            return tasted
        samples: list[list[float]] = []
        moved, sent = list[dict[str, Tally]](), 0.0
        started = time.perf_counter()
        for sample in range(_WARM + self.samples):
            spent = time.perf_counter() - started > self.budget
            timed = sample >= _WARM or (sample > 0 and spent)  # what takes so long needs less warmth
            self._flat.copy_(self._source)
            if timed:
                self._evict.add_(1.0)
            echo = Echo(world, axes)
            begin, seconds, told = time.perf_counter(), list[float](), list[dict[str, Tally]]()
            for names in self.buckets:
                seconds.append(self._exchange(worker, echo, {name: self._views[name] for name in names}))
                told.append(echo.moved)
                echo.moved = {}
                if time.perf_counter() - begin > self.patience:
                    break
            worker.advance()
            late = time.perf_counter() - begin > self.patience
            if not timed and not late:
                continue
            add = self._add()
            if len(seconds) == len(self.buckets):
                samples.append([second / add for second in seconds])
                moved, sent = told, echo.sent
            elif not samples:
                return self._extrapolate([second / add for second in seconds], told, echo)
            if late or time.perf_counter() - started > self.budget:
                break
        codec = tuple(statistics.median(column) for column in zip(*samples, strict=True))
        return Replay(world, codec, tuple(moved), sent, axes=axes)

    def _try_part(self, worker: Exchanging, axes: Mapping[str, int]) -> Replay | None:
        """The replay if, by some rows of the first bucket's tensors, an exchange of all would take many times ``patience``."""
        views = {name: self._views[name] for name in self.buckets[0]}
        part = {name: x[: -(-len(x) // _PART)] if x.numel() >= _LARGE else x for name, x in views.items()}
        return self._taste(worker, axes, part, _HOPELESS * self.patience)

    def _taste(
        self, worker: Exchanging, axes: Mapping[str, int], xs: Mapping[str, Tensor], patience: float
    ) -> Replay | None:
        """The replay if, by what these tensors of the first bucket take, an exchange of all would take longer than that."""
        for _ in range(2):  # once to make memories and workspaces
            self._flat.copy_(self._source)
            echo = Echo(worker.world, axes)
            seconds = self._exchange(worker, echo, xs)
        numbers = sum(x.numel() for x in xs.values())
        if seconds * sum(self.numbers) / numbers <= patience:
            return None
        share = self.numbers[0] / numbers
        moved = {kind: Tally(tally.count, share * tally.bytes) for kind, tally in echo.moved.items()}
        echo.sent *= share
        return self._extrapolate([share * seconds / self._add()], [moved], echo, complete=share == 1)

    def _exchange(self, worker: Exchanging, echo: Echo, xs: Mapping[str, Tensor]) -> float:
        """Processor seconds of an exchange of these tensors, and of the copies of their means."""
        start, before = time.thread_time(), echo.cpu
        outs = drive(worker.exchange(dict(xs)), echo)
        for name, x in xs.items():
            if outs[name].mean.data_ptr() != x.data_ptr():
                x.copy_(outs[name].mean)
        worker.workspace.reset()
        return max(0.0, time.thread_time() - start - (echo.cpu - before))

    def _add(self) -> float:
        self._evict.add_(1.0)
        start = time.thread_time()
        self._y.add_(self._source)
        self.adds.append(max(time.thread_time() - start, 1e-9))
        return self.adds[-1]

    def _extrapolate(
        self, codec: list[float], moved: list[dict[str, Tally]], echo: Echo, complete: bool = True
    ) -> Replay:
        """Assumes that the rest costs as much per number as what was exchanged."""
        done = len(codec)
        known = sum(self.numbers[:done])
        for numbers in self.numbers[done:]:
            share = numbers / known
            codec.append(share * sum(codec[:done]))
            total: dict[str, Tally] = {}
            for bucket in moved[:done]:
                for kind, tally in bucket.items():
                    total.setdefault(kind, Tally()).add(tally, share)
            moved.append(total)
        sent = echo.sent * sum(self.numbers) / known
        return Replay(echo.world, tuple(codec), tuple(moved), sent, complete and done == len(self.numbers), echo.axes)
