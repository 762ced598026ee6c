"""The cost of Grace itself, measured where it does nothing useful: with the method ``none``, in the steady state.

Three questions, and how they are answered:

- *time*: two gloo processes train the same perceptron of 10 million parameters twice, as plain DistributedDataParallel
  and with ``attach(model, "none")``. A sample is one step (forward, backward, optimizer) of each, one right after the
  other, in alternating order; the measure is the ratio of the two.
- *machinery*: one exchange of many small tensors, under ``none`` and under methods with a memory and a gather of four
  workers' wires, over a network that at once returns what it was given; the measure is this thread's processor time
  without the network's, in microseconds per tensor. What is left is generators, plans, calls and bookkeeping, and the
  coding of 64 numbers that belongs to it. *Cold*: a pass over 64 MB in between empties the caches, as a backward pass does.
  *Alone*: with ``GRACE_PLANS=0``.
- *memory*: allocations of at least half the gradient's size in one exchange of 10 million numbers between two
  processes, once memories and workspaces exist; the measure is how many of them a step makes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.nn.parallel import DistributedDataParallel

import grace
from grace.compute import resources
from grace.errors import GraceError
from grace.predict.replay import Echo
from grace.registry.policy import Policy
from grace.run.drive import drive
from grace.run.worker import Worker
from grace.transports.base import Transport
from grace.transports.meeting import init_process_group
from grace.transports.torch_distributed import TorchDistributed
from grace_bench.runs.results import quartiles

WIDTH, DEPTH, BATCH = 1824, 3, 32  # 3 x (1824^2 + 1824) = 9,986,400 parameters
TENSORS, NUMBERS, WORKERS = 200, 64, 4  # of the machinery's measurement
MACHINERY_METHODS = ("none", "topk", "efsignsgd", "qsgd:bits=4,memory=residual")
GOAL = 10.0  # microseconds per tensor
_COLD = 64 << 18  # numbers that empty the caches
MEMORY_METHODS = ("none", "bf16", "topk", "efsignsgd", "qsgd", "powersgd")
_WARM_STEPS = 3


def measure(samples: int) -> list[dict[str, Any]]:
    """All rows: operation, value (a median), unit, low and high (quartiles), goal.

    Raises:
        GraceError: the two processes failed.
    """
    rows = [machinery(method, samples, cold=cold) for method in MACHINERY_METHODS for cold in (False, True)]
    alone = [machinery(method, samples, plans=False) for method in MACHINERY_METHODS]
    return [*in_two_processes(_worker, samples), *rows, *alone]


def make_row(operation: str, values: list[float], unit: str, goal: float) -> dict[str, Any]:
    """A measurement, as its median and quartiles."""
    spread = quartiles(values)
    return {
        "operation": operation,
        "value": spread["median"],
        "unit": unit,
        "low": spread["low"],
        "high": spread["high"],
        "goal": goal,
        "samples": len(values),
    }


# ---- time and memory, in two processes ------------------------------------------------------------------------------
def in_two_processes(work: Callable[..., list[dict[str, Any]]], *args: Any) -> list[dict[str, Any]]:
    """The result of ``work(*args)`` on rank 0 of two gloo processes.

    Raises:
        GraceError: they failed.
    """
    with tempfile.TemporaryDirectory(prefix="grace-") as folder:
        config = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=2, rdzv_backend="c10d", rdzv_endpoint="localhost:0",
            max_restarts=0, logs_specs=DefaultLogsSpecs(folder, redirects=Std.ALL), run_id="grace",
        )  # fmt: skip
        try:
            rows: list[dict[str, Any]] = elastic_launch(config, _join)(work, *args)[0]
        except ChildFailedError as error:
            raise GraceError(f"the two processes failed: {error}") from error
        return rows


def _join(work: Callable[..., list[dict[str, Any]]], *args: Any) -> list[dict[str, Any]]:
    """A process of the two."""
    torch.set_num_threads(max(1, resources.cores() // 2))
    init_process_group()
    rows = work(*args)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return rows


def _worker(samples: int) -> list[dict[str, Any]]:
    """All rows of the two processes; rank 0's count."""
    transport = TorchDistributed()
    return [_step_ratio(samples), *(_allocations(method, transport) for method in MEMORY_METHODS)]


def _step_ratio(samples: int) -> dict[str, Any]:
    """Time of a step with ``attach(model, "none")`` over that of plain DistributedDataParallel."""
    plain, attached = _stepper(attach=False), _stepper(attach=True)
    for _ in range(_WARM_STEPS):
        plain()
        attached()
    ratios = []
    for sample in range(samples):
        first, second = (plain, attached) if sample % 2 == 0 else (attached, plain)
        times = {run: seconds(run) for run in (first, second)}
        ratios.append(times[attached] / times[plain])
    size = DEPTH * (WIDTH * WIDTH + WIDTH)
    return make_row(f"step with attach(model, 'none') / plain DDP, {size:,} parameters, 2 processes", ratios, "x", 1.10)


def _stepper(*, attach: bool) -> Callable[[], None]:
    torch.manual_seed(0)
    layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers))
    if attach:
        grace.attach(model, "none")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(BATCH, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


def seconds(run: Callable[[], None]) -> float:
    """Seconds that it takes on this rank, from the moment when all ranks begin."""
    torch.distributed.barrier()  # so that neither run pays for the other's stragglers
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _allocations(method: str, transport: Transport) -> dict[str, Any]:
    """Large allocations in each of some exchanges of one large matrix."""
    shape = (DEPTH * WIDTH, WIDTH)
    worker = Worker(Policy([("*", method)]), transport.rank, transport.world)
    gradient, buffer = torch.randn(shape), torch.empty(shape)
    limit = buffer.numel() * buffer.element_size() // 2

    def exchange() -> None:
        outs = drive(worker.exchange({"weight": buffer}), transport)
        mean = outs["weight"].mean
        if mean.data_ptr() != buffer.data_ptr():
            buffer.copy_(mean)
        worker.workspace.reset()
        worker.advance()

    counts = []
    for step in range(_WARM_STEPS + 4):
        buffer.copy_(gradient)
        if step < _WARM_STEPS:
            exchange()
        else:
            counts.append(float(sum(size >= limit for size in list_allocations(exchange))))
    return make_row(f"allocations of half the gradient or more per step, {method}", counts, "", 0)


def list_allocations(run: Callable[[], None]) -> list[int]:
    """Sizes in bytes of what this thread allocates with torch while ``run`` runs."""
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        run()
    assert profile.kineto_results is not None
    events = profile.kineto_results.events()
    return [size for event in events if event.name() == "[memory]" and (size := event.nbytes()) > 0]


# ---- machinery, in this process -------------------------------------------------------------------------------------
def machinery(method: str, samples: int, *, cold: bool = False, plans: bool = True) -> dict[str, Any]:
    """Microseconds per tensor of an exchange of small tensors."""
    with resources.threads(1):
        worker, network = Worker(Policy([("*", method)]), 0, WORKERS), Echo(WORKERS)
        worker.plans = plans
        source = torch.randn(TENSORS, NUMBERS, generator=torch.Generator().manual_seed(0))
        flat, large = source.clone(), torch.zeros(_COLD if cold else 0)
        tensors = {f"layer{i}.weight": row for i, row in enumerate(flat.unbind())}
        costs = []
        for sample in range(_WARM_STEPS + (1 if cold else 4) * samples):
            flat.copy_(source)
            large.add_(1.0)
            start, elsewhere = time.thread_time(), network.cpu
            drive(worker.exchange(tensors), network)
            worker.workspace.reset()
            worker.advance()
            spent = time.thread_time() - start - (network.cpu - elsewhere)
            if sample >= _WARM_STEPS:
                costs.append(1e6 * spent / TENSORS)
    how = ("cold caches" if cold else "warm") + ("" if plans else ", alone")
    what = f"machinery per tensor and step, {method}, {TENSORS} tensors of {NUMBERS} numbers, {WORKERS} workers, {how}"
    return make_row(what, costs, "us", GOAL)
