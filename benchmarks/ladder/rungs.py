"""The rungs: what a step takes with nothing, and with one thing more on each rung."""

from __future__ import annotations

import inspect
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

import grace
from benchmarks.contenders import Attached, Contender
from benchmarks.ladder.recorded import Recorded, TwoLanes, record
from grace.kernels.finite import all_finite, sum_finite
from grace.registry.policy import Policy
from grace.run.lane import ThreadLane
from grace.run.worker import Worker
from grace.transports.base import Transport
from grace.transports.torch_distributed import TorchDistributed
from grace_bench.tasks import Task

RECORDS = (
    2  # steps before that in which exchanges are recorded: DistributedDataParallel has made its buckets anew by then
)
WARM = 3  # exchanges before the one that is recorded
_SECONDS = 60.0
FLAGS: dict[str, Any] = {
    name: True
    for name in ("gradient_as_bucket_view", "batched_grad_copy")
    if name in inspect.signature(DistributedDataParallel.__init__).parameters
}


def connect() -> TorchDistributed:
    """A transport of its own for a rung. All ranks call it."""
    transport = TorchDistributed.of_same_ranks()
    transport.all_gather_text("", seconds=_SECONDS)
    return transport


class Hooked(Contender):
    """A model under ``DistributedDataParallel`` whose hook returns a finished future: copies and bookkeeping are left.

    Args:
        task: of the model.
        flags: whether with what saves copies, where torch has it.
    """

    def __init__(self, task: Task, flags: bool):
        super().__init__(task)
        model = DistributedDataParallel(self.plain, **(FLAGS if flags else {}))
        model.register_comm_hook(self, _hook)
        self.model = model
        self.names: dict[Tensor, str] = {p: name for name, p in self.plain.named_parameters()}

    def take(self, bucket: GradBucket) -> Future[Tensor]:
        """A bucket has come."""
        future: Future[Tensor] = Future()
        future.set_result(bucket.buffer())
        return future


class Passing(Hooked):
    """And one pass over each bucket in a lane: what any memory costs, or where there is none, what looking for inf costs."""

    def __init__(self, task: Task, method: str):
        super().__init__(task, flags=True)
        self.lane = ThreadLane("ladder")
        self.policy = Policy.of(method)
        self.memories: dict[int, tuple[Tensor, Tensor]] = {}
        self.last: int | None = None  # bucket of a step

    def take(self, bucket: GradBucket) -> Future[Tensor]:
        index, buffer, future = bucket.index(), bucket.buffer(), Future[Tensor]()
        if self.done < RECORDS:
            future.set_result(buffer)
            return future
        gradients = {}
        if self.done == RECORDS:
            names = [self.names[p] for p in bucket.parameters()]
            gradients = dict(zip(names, bucket.gradients(), strict=True))
            self.last = index if bucket.is_last() else self.last
        self.submit(index, buffer, gradients, lambda: future.set_result(buffer))
        return future

    def submit(self, index: int, buffer: Tensor, gradients: dict[str, Tensor], done: Callable[[], None]) -> None:
        """Does what a bucket is for, and calls ``done``. gradients: by name, of the step in which exchanges are recorded."""

        def job() -> None:
            try:
                self.work(index, buffer, gradients)
            except BaseException:  # whoever waits for the future would wait for ever
                traceback.print_exc()
                os._exit(1)
            done()

        self.lane.submit(job)

    def work(self, index: int, buffer: Tensor, gradients: dict[str, Tensor]) -> None:
        """The work on the bucket, in the lane."""
        if not self.owes:
            all_finite(buffer)
            return
        if index not in self.memories:
            self.memories[index] = torch.zeros_like(buffer), torch.zeros_like(buffer)
        memory, rest = self.memories[index]
        sum_finite(buffer, memory, rest)

    @property
    def owes(self) -> bool:
        """True if the method has a memory."""
        like = torch.empty(64, 64)
        method = self.policy.method_for("weight", like, 0)
        return method.owed(method.init(like)) is not None


class Moving(Passing):
    """And the method's collectives, whose contents nobody reads.

    Args:
        task, method: as above.
        codecs: whether its encoder and decoder run, too, with constant arguments; then the pass is in them.
        lanes: 2: codecs and network have a thread each.
    """

    def __init__(self, task: Task, method: str, *, codecs: bool, lanes: int = 1):
        super().__init__(task, method)
        self.transport: Transport = connect()
        self.codecs, self.lanes = codecs, lanes
        self.recorded: dict[int, Recorded] = {}
        self._two: TwoLanes | None = None

    def submit(self, index: int, buffer: Tensor, gradients: dict[str, Tensor], done: Callable[[], None]) -> None:
        if self.lanes == 1 or gradients:
            super().submit(index, buffer, gradients, done)
            return
        if self._two is None:
            self._two = TwoLanes([self.recorded[j] for j in sorted(self.recorded)], self.transport)
        self._two.take(index, done)

    def work(self, index: int, buffer: Tensor, gradients: dict[str, Tensor]) -> None:
        if gradients:
            self.recorded[index] = self._record(gradients)
            return
        if not self.codecs:
            super().work(index, buffer, gradients)
        self.recorded[index].run(self.transport, codecs=self.codecs)

    @torch.no_grad()
    def _record(self, gradients: dict[str, Tensor]) -> Recorded:
        """An exchange of this bucket, of whose kind there were some before: its memories and tables are there then."""
        worker = Worker(self.policy, self.transport.rank, self.transport.world)
        for _ in range(WARM):
            record(worker, gradients, self.transport)
            worker.workspace.reset()
            worker.advance()
        return record(worker, gradients, self.transport)


class Optimizer(Contender):
    """``DistributedOptimizer``: the product without ``DistributedDataParallel``."""

    def __init__(self, task: Task, method: str):
        super().__init__(task)
        self.optimizer = grace.DistributedOptimizer(self.optimizer, method, self.plain.named_parameters())


def _hook(state: Hooked, bucket: GradBucket) -> Future[Tensor]:
    return state.take(bucket)


_hook.__annotations__ = {"bucket": GradBucket, "return": Future[Tensor]}  # torch compares objects, not strings


@dataclass(frozen=True, slots=True)
class Rung:
    """name: of the rung. words: what runs. make: from a task and a method."""

    name: str
    words: str
    make: Callable[[Task, str], Contender]


def _product(task: Task, method: str) -> Contender:
    flags = {name: True for name in FLAGS if name != "gradient_as_bucket_view"}
    return Attached(task, method, **flags)


RUNGS = (
    Rung("F0", "the bare model, no communication", lambda task, method: Contender(task)),
    Rung("F1", "DDP, whose hook does nothing", lambda task, method: Hooked(task, flags=False)),
    Rung("F2", f"F1 with {', '.join(FLAGS)}", lambda task, method: Hooked(task, flags=True)),
    Rung("F3", "F2 and one native pass over each bucket", Passing),
    Rung("F4", "F3 and the method's collectives", lambda task, method: Moving(task, method, codecs=False)),
    Rung("F5", "F2, collectives, and codecs with constant arguments", lambda task, method: Moving(task, method, codecs=True)),
    Rung("F5b", "F5 on two lanes, one for the network", lambda task, method: Moving(task, method, codecs=True, lanes=2)),
    Rung("F6", "the product: DDP and grace.attach", _product),
    Rung("F7", "the product: grace.DistributedOptimizer, without DDP", Optimizer),
)  # fmt: skip
