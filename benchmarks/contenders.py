"""Models that take turns in one run, and the workers they run in, which are started in a network that is made for them."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import grace
from grace.adapters.choosing import Choosing
from grace.auto.explain import Explanation
from grace.compute.resources import cores
from grace.predict.links import link
from grace_bench import machine
from grace_bench.network.namespaces import INTERFACE, PORT, ShapedNetwork, address, environment
from grace_bench.tasks import Task, find_task
from grace_bench.workers.local import terminable
from grace_bench.workers.ports import free_port
from grace_bench.workers.scratch import Scratch

_FOLDER = "GRACE_BENCHMARK_FOLDER"  # what tells a worker where the lifeline of its command is


class Contender:
    """A model in training; all of a run begin with the same numbers. All ranks make one in the same way.

    ``model`` is what the loss is computed with; this one exchanges nothing. ``done``: steps so far.
    """

    def __init__(self, task: Task):
        self.task = task
        torch.manual_seed(0)
        self.plain = task.model()
        self.model: nn.Module = self.plain
        self.optimizer = task.optimizer(self.plain)
        self.batches = task.batches(dist.get_rank(), dist.get_world_size(), 0)
        self.done = 0

    def step(self) -> float:
        """Takes a step; returns its seconds."""
        batch = next(self.batches)  # not a part of it: in real training a loader's processes do that
        start = time.perf_counter()
        for group in self.optimizer.param_groups:
            group["lr"] = self.task.lr(min(self.done, self.task.steps - 1))
        self.optimizer.zero_grad()
        torch.autograd.backward(self.task.loss(self.model, batch))
        self.optimizer.step()
        self.done += 1
        return time.perf_counter() - start

    def turn(self, steps: int) -> tuple[float, float]:
        """Some steps after one that is not counted, for caches are another's then: of one of them the seconds until all
        workers have done theirs, and this worker's processor seconds.
        """
        self.step()
        dist.barrier()
        start, spent = time.perf_counter(), time.process_time()
        for _ in range(steps):
            self.step()
        cpu = time.process_time() - spent
        dist.barrier()
        return (time.perf_counter() - start) / steps, cpu / steps


class Attached(Contender):
    """A model under ``DistributedDataParallel`` that trains with one method, or ``auto``."""

    def __init__(self, task: Task, method: str, **ddp: Any):
        super().__init__(task)
        model = DistributedDataParallel(self.plain, gradient_as_bucket_view=True, **ddp)
        self.model = model
        self.handle = grace.attach(model, method, optimizer=self.optimizer)

    def explain(self) -> Explanation:
        """The choice of ``auto``."""
        assert isinstance(self.handle, Choosing)
        explained = self.handle.explain()
        assert isinstance(explained, Explanation)
        return explained


# ---- workers --------------------------------------------------------------------------------------------------------
def add_options(parser: argparse.ArgumentParser, workers: int) -> None:
    """The options that all these benchmarks share; ``workers``: the default."""
    parser.add_argument("--task", default="vgg16_cifar")
    parser.add_argument("--data", default="synthetic", help="synthetic, or embedded")
    parser.add_argument("--workers", type=int, choices=range(1, 65), metavar="W", default=workers)
    parser.add_argument("--batch", type=int, default=2, help="samples of a worker and step")


def begin(options: argparse.Namespace) -> Task:
    """Begins the work of a worker; returns the task."""
    join()
    task = find_task(options.task)
    task.workers, task.steps = dist.get_world_size(), 10_000
    task.load_synthetic() if options.data == "synthetic" else task.load(None)
    task.batch = options.batch or task.batch
    return task


def join() -> None:
    """Meets the other workers that :func:`start` has started. This one ends with the command, in whatever way that does."""
    Scratch(Path(os.environ[_FOLDER])).watch(lambda: os._exit(1))
    dist.init_process_group("gloo")
    torch.set_num_threads(1)


def hand_over(number: int) -> None:
    """Rank 0 asks who started it to begin a phase; the others wait."""
    if dist.get_rank() == 0:
        sys.stdout.write(f"phase {number}\n")
        sys.stdout.flush()
        sys.stdin.readline()
    dist.barrier()


def tell(text: str) -> None:
    """Says on rank 0 how far it is."""
    if dist.get_rank() == 0:
        sys.stderr.write(f"{text}\n")


def end() -> None:
    """Ends a worker when all have come: what threads still hold is of no use."""
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def start(
    module: str,
    name: str,
    workers: int,
    phase: Callable[[int, ShapedNetwork | None], None] = lambda number, network: None,
    machines: int | None = None,
) -> None:
    """Runs ``python -m MODULE``, with the arguments of this process, once for each worker. No worker outlives this call,
    however it ends, nor this process.

    Args:
        module: whose main calls :func:`begin` or :func:`join` where RANK is set.
        name: of the link of each worker, as :func:`grace.predict.links.link` reads it; "none": they share the loopback.
        workers: how many there are.
        phase: what to do when rank 0 asks for a phase with :func:`hand_over`.
        machines: on how many they are, which share a link each; None: each has its own.

    Raises:
        SystemExit: a worker failed; the others are ended.
        LinkError: this machine cannot make such a link.
    """
    made = link(name)
    around: AbstractContextManager[ShapedNetwork | None] = (
        ShapedNetwork(made, workers, machines) if made.shaped else contextlib.nullcontext()
    )
    port = PORT if made.shaped else free_port()
    with terminable(), _lifeline() as folder, around as network, _ended() as started:
        for rank in range(workers):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(workers), "MASTER_PORT": str(port)}
            where = {"MASTER_ADDR": "127.0.0.1", _FOLDER: folder}
            if network is not None:
                where |= {"MASTER_ADDR": address(0), "GLOO_SOCKET_IFNAME": INTERFACE}
            command = [*([] if network is None else network.enter(rank)), sys.executable, "-m", module, *sys.argv[1:]]
            pipes: dict[str, Any] = {} if rank else {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            started.append(subprocess.Popen(command, env={**environment(), **place, **where}, text=True, **pipes))
        asks, answers = started[0].stdout, started[0].stdin
        assert asks is not None
        assert answers is not None
        for line in asks:
            if line.startswith("phase "):
                phase(int(line.split()[1]), network)
                answers.write("go\n")
                answers.flush()
        failed = [worker.wait() for worker in started]
    if any(failed):
        raise SystemExit(f"workers ended with {failed}")


@contextlib.contextmanager
def _lifeline() -> Iterator[str]:
    """The folder of a lifeline that this process holds."""
    with (
        tempfile.TemporaryDirectory(prefix="grace-", ignore_cleanup_errors=True) as folder,
        Scratch(Path(folder)).held(),
    ):
        yield folder


@contextlib.contextmanager
def _ended() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that do not outlive this one's interest in them."""
    started: list[subprocess.Popen[str]] = []
    try:
        yield started
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


# ---- what is said ---------------------------------------------------------------------------------------------------
class Surroundings:
    """The command, versions and load beside which something was measured."""

    def __init__(self) -> None:
        self.before, self._began = machine.load(), time.monotonic()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "command": sys.argv, "machine": machine.processor(), "cores": cores(), "versions": machine.versions(),
            "load_before": self.before, "load_after": machine.load(), "seconds": time.monotonic() - self._began,
        }  # fmt: skip

    def __str__(self) -> str:
        busy = machine.is_busy(self.before, cores())
        note = "; the machine was busy: times are doubtful" if busy else ""
        return (
            f"load {self.before:.1f} before, {machine.load():.1f} after; {time.monotonic() - self._began:.0f} s{note}"
        )


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, ["---"] * len(heads), *rows))
