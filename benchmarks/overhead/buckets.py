"""The cost of a bucket of 25 MB: for the host, which submits its exchange, and for the device, which computes it.

12 tensors of a ResNet-50, 6,361,920 numbers, with the method's default memory, over a network that at once returns what it
was given, as from four workers. In a backward pass the host does this beside the model's own launches; where it takes longer
than the device, that waits. The stream is held back until the host has submitted all: a method that asks the host something
waits for it then, which counts. Gradients are new in each step, as those of a training are: methods that look for large
numbers take longer where all are alike. A profiler counts the launches of a step. On the CPU, which does
what it submits at once, there is one row for each method.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from benchmarks.overhead.ladder import WORKERS, make_row
from grace.predict.replay import Echo
from grace.registry.policy import Policy
from grace.run.drive import drive
from grace.run.worker import Worker
from grace_bench.codecs.device import BusyClock, count_launches

SHAPES = [(512, 512, 3, 3)] * 2 + [(512,)] * 4 + [(2048, 512), (2048,), (512,), (256, 256, 3, 3), (256,), (64,)]
# A block of a transformer of width 1,024 in rows for four workers: 4 matrices and 8 small tensors.
BLOCK = [(3072, 1024), (1024, 1024), (4096, 1024), (1024, 4096), *[(1024,)] * 8]
METHODS = (
    "none", "bf16", "signsgd", "efsignsgd", "qsgd:bits=4,memory=residual", "fp8", "natural", "onebit", "topk", "randomk",
    "threshold:v=2", "dgc", "powersgd:rank=4", "drive", "thc",
)  # fmt: skip
_WARM_STEPS = 6


def measure(
    methods: Sequence[str],
    samples: int,
    device: torch.device,
    shapes: Sequence[tuple[int, ...]] = SHAPES,
    scatters: bool = False,
) -> Iterator[dict[str, Any]]:
    """The rows, each as soon as it is measured: operation, value (a median), unit, low and high (quartiles), goal.

    Args:
        methods: of which each has a row or more.
        samples: of each row.
        device: where it is measured.
        shapes: of the bucket's tensors.
        scatters: measure a reduce-scatter of rows, one for each worker, as under ``fully_shard``.

    Raises:
        ConfigurationError: a method is unknown.
    """
    kept = gradients(shapes, device)
    size = sum(x.numel() for x in kept.values())
    what = f"{'block of rows' if scatters else 'bucket'} of {len(kept)} tensors, {size:,} numbers"
    flat = torch.cat([x.view(-1) for x in kept.values()])
    _, busy = _samples(lambda: flat.clone, samples, device)
    yield make_row(f"a copy of a {what}", busy, "us", 0.0)
    for method in track(methods, "buckets", console=Console(stderr=True), transient=True):
        ready = stepper(method, kept, scatters)
        host, busy = _samples(ready, samples, device)
        yield make_row(f"{method}, {what}, {WORKERS} workers", busy, "us", 0.0)
        if device.type != "cpu":
            yield make_row(f"{method}: the host submits it", host, "us", 0.0)
            launches = [float(count_launches(_step_of(ready))) for _ in range(2)]
            yield make_row(f"{method}: launches of kernels, Triton's and torch's", launches, "", 0.0)


def gradients(shapes: Sequence[tuple[int, ...]], device: torch.device) -> dict[str, torch.Tensor]:
    """Tensors of these shapes, by name."""
    made = [torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i, shape in enumerate(shapes)]
    return {f"layer{i}.weight": x.to(device) for i, x in enumerate(made)}


def stepper(method: str, kept: dict[str, torch.Tensor], scatters: bool = False) -> Callable[[], Callable[[], object]]:
    """A function that prepares a step, and returns it."""
    worker, network = Worker(Policy([("*", method)]), 0, WORKERS), Echo(WORKERS)

    def ready() -> Callable[[], object]:
        worker.workspace.reset()
        worker.advance()
        given = {name: x.clone() for name, x in kept.items()}
        if scatters:
            rows = {name: x.view(WORKERS, -1) for name, x in given.items()}
            return lambda: drive(worker.scatter(rows), network)
        return lambda: drive(worker.exchange(given), network)

    return ready


def _step_of(ready: Callable[[], Callable[[], object]]) -> Callable[[], object]:
    return lambda: ready()()


def _samples(
    ready: Callable[[], Callable[[], object]], samples: int, device: torch.device
) -> tuple[list[float], list[float]]:
    """Microseconds of the host, and of the device, for each of some runs of what ``ready`` returns."""
    clock = time.perf_counter if device.type == "cpu" else BusyClock()
    host, busy = [], []
    for sample in range(_WARM_STEPS + samples):
        run = ready()
        begin = clock()
        start = time.perf_counter()
        run()
        spent = time.perf_counter() - start
        end = clock()
        if sample >= _WARM_STEPS:
            host.append(1e6 * spent)
            busy.append(1e6 * (end - begin))
    return host, busy
