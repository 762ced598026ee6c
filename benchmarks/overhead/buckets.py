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
from collections.abc import Callable, Sequence
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
METHODS = (
    "none", "bf16", "signsgd", "efsignsgd", "qsgd:bits=4,memory=residual", "fp8", "natural", "onebit", "topk", "randomk",
    "threshold:v=2", "dgc", "powersgd:rank=4", "drive", "thc",
)  # fmt: skip
_WARM_STEPS = 6


def measure(
    methods: Sequence[str], samples: int, device: torch.device, shapes: Sequence[tuple[int, ...]] = SHAPES
) -> list[dict[str, Any]]:
    """All rows: operation, value (a median), unit, low and high (quartiles), goal.

    Raises:
        ConfigurationError: a method is unknown.
    """
    gradients = [torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i, shape in enumerate(shapes)]
    kept = {f"layer{i}.weight": x.to(device) for i, x in enumerate(gradients)}
    size = sum(x.numel() for x in gradients)
    what = f"bucket of {len(kept)} tensors, {size:,} numbers"
    flat = torch.cat([x.view(-1) for x in kept.values()])
    _, busy = _samples(lambda: flat.clone, samples, device)
    rows = [make_row(f"a copy of a {what}", busy, "us", 0.0)]
    for method in track(methods, "buckets", console=Console(stderr=True), transient=True):
        ready = _stepper(method, kept)
        host, busy = _samples(ready, samples, device)
        rows.append(make_row(f"{method}, {what}, {WORKERS} workers", busy, "us", 0.0))
        if device.type != "cpu":
            rows.append(make_row(f"{method}: the host submits it", host, "us", 0.0))
            launches = [float(count_launches(_step_of(ready))) for _ in range(2)]
            rows.append(make_row(f"{method}: launches of kernels, Triton's and torch's", launches, "", 0.0))
    return rows


def _stepper(method: str, kept: dict[str, torch.Tensor]) -> Callable[[], Callable[[], object]]:
    """A function that prepares a step, and returns it."""
    worker, network = Worker(Policy([("*", method)]), 0, WORKERS), Echo(WORKERS)

    def ready() -> Callable[[], object]:
        worker.workspace.reset()
        worker.advance()
        given = {name: x.clone() for name, x in kept.items()}
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
