"""A bucket's exchange as it was once, to be done again with constant arguments: its native calls and its collectives.

What runs again costs what kernels and the network cost, and nothing else: no checks, no generators, no tables, no copies by
torch. The numbers mean nothing, as the arguments are those of another step.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from grace.collectives import Collective
from grace.compute import backends, native
from grace.run.lane import ThreadLane
from grace.run.worker import Worker
from grace.transports.base import Transport


@dataclass(slots=True)
class Recorded:
    """An exchange of one bucket.

    stages: native functions with their arguments, and the collective that comes after them; the last stage has none.
    kept: everything that the arguments point to. sent: bytes that this worker gives to the network.
    """

    stages: list[tuple[list[tuple[Callable[..., int], tuple[Any, ...]]], Collective | None]]
    kept: list[object] = field(default_factory=list)

    @property
    def sent(self) -> int:
        """Bytes of all buffers."""
        return sum(op.buf.numel() * op.buf.element_size() for _, op in self.stages if op is not None)

    def call(self, stage: int) -> None:
        """Makes the native calls of a stage."""
        for kernel, arguments in self.stages[stage][0]:
            kernel(*arguments)

    def run(self, transport: Transport, *, codecs: bool) -> None:
        """All of it; without ``codecs`` the collectives alone."""
        for k, (_, op) in enumerate(self.stages):
            if codecs:
                self.call(k)
            if op is not None:
                transport.run(op)


class _Noting:
    """Native functions that note what they are called with. In place of ``native.c`` while an exchange is recorded."""

    def __init__(self, functions: native.Functions):
        self._functions = functions
        self._kernels: dict[int, Callable[..., int]] = {}
        self.calls: list[tuple[Callable[..., int], tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        kernel = getattr(self._functions, name)

        def noted(*arguments: Any) -> int:
            self.calls.append((kernel, arguments))
            done: int = kernel(*arguments)
            return done

        self._kernels[id(noted)] = kernel
        setattr(self, name, noted)
        return noted

    def number_of(self, kernel: Callable[..., int]) -> tuple[int, tuple[Any, ...]]:
        """As the functions' own."""
        return self._functions.number_of(self._kernels.get(id(kernel), kernel))


class _Keeping(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps what operations return, so that no address that was noted is given away."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept: list[object] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.kept.append(out)
        return out


def record(worker: Worker, gradients: Mapping[str, Tensor], transport: Transport) -> Recorded:
    """Exchanges these gradients, of any shapes, and notes how. All ranks call it; the worker belongs to the recording then.

    Raises:
        What the exchange raises.
    """
    backends.backend()  # the first call chooses what native.c is
    real, keeping = native.c, _Keeping()
    noting = _Noting(real)
    recorded = Recorded([], [worker, dict(gradients), keeping.kept])
    native.c = noting  # type: ignore[assignment]
    try:
        exchange, answer = worker.exchange(dict(gradients)), None
        while True:
            with keeping:
                op = exchange.send(answer)  # type: ignore[arg-type]
            recorded.stages.append((noting.calls, op))
            noting.calls = []
            answer = transport.run(op)
            recorded.kept.append(answer)
    except StopIteration as stop:
        recorded.stages.append((noting.calls, None))
        recorded.kept.append(stop.value)
    finally:
        native.c = real
    return recorded


class TwoLanes:
    """Recorded exchanges on two threads, one for codecs and one for the network.

    The order of collectives is that of (bucket + round, bucket), which is the same on all ranks, whatever is ready first. The
    codecs' thread takes what has something to send before what has not.

    Args:
        buckets: the exchanges of a step, in the order in which buckets come.
        transport: between the workers.
    """

    def __init__(self, buckets: list[Recorded], transport: Transport):
        self.buckets, self.transport = buckets, transport
        rounds = [(j + r, j, r) for j, bucket in enumerate(buckets) for r in range(len(bucket.stages) - 1)]
        self._order = [(j, r) for _, j, r in sorted(rounds)]
        self._stages = sum(len(bucket.stages) for bucket in buckets)
        self._changed = threading.Condition()
        self._codec, self._network = ThreadLane("ladder-codecs"), ThreadLane("ladder-network")
        self._due: list[tuple[int, int]] = []  # stages whose calls may be made
        self._sent: set[tuple[int, int]] = set()  # stages whose collective may go
        self._done: dict[int, Callable[[], None]] = {}

    def take(self, bucket: int, done: Callable[[], None]) -> None:
        """A bucket has come; ``done`` is called when its exchange is over."""
        if bucket == 0:  # all of the last step is over
            self._codec.submit(self._encode)
            self._network.submit(self._move)
        with self._changed:
            self._done[bucket] = done
            self._due.append((bucket, 0))
            self._changed.notify_all()

    def _encode(self) -> None:
        for _ in range(self._stages):
            with self._changed:
                self._changed.wait_for(lambda: bool(self._due))
                bucket, stage = min(self._due, key=lambda due: (self._ends(*due), due))
                self._due.remove((bucket, stage))
            self.buckets[bucket].call(stage)
            if self._ends(bucket, stage):
                self._done[bucket]()
                continue
            with self._changed:
                self._sent.add((bucket, stage))
                self._changed.notify_all()

    def _move(self) -> None:
        waiting = deque(self._order)
        while waiting:
            bucket, stage = entry = waiting.popleft()
            with self._changed:
                self._changed.wait_for(lambda entry=entry: entry in self._sent)  # type: ignore[misc]
            op = self.buckets[bucket].stages[stage][1]
            assert op is not None
            self.transport.run(op)
            with self._changed:
                self._sent.remove(entry)
                self._due.append((bucket, stage + 1))
                self._changed.notify_all()

    def _ends(self, bucket: int, stage: int) -> bool:
        return stage == len(self.buckets[bucket].stages) - 1
