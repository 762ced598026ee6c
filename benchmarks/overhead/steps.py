"""The time of a training step with Grace, relative to plain DistributedDataParallel, of one worker on a device.

One worker has nothing to send, so that what is measured is what Grace costs: codecs, launches, and the host that submits
them. The model is an encoder of 12 layers, 85 million parameters, and its loss is of all outputs. A sample is some steps
(forward, backward, optimizer) of each contender, which take turns, and ends when the device is done; the measure is the ratio
to the plain model's sample of the same turn. Torch's own bf16 hook takes its turn, too, over NCCL.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import track
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import grace
from benchmarks.overhead.ladder import make_row

LAYERS, WIDTH, BATCH, WORDS = 12, 768, 8, 256
HOOK = "torch's bf16 hook"
_STEPS, _WARM_STEPS = 5, 10  # of a sample; before the first


def measure(
    methods: Sequence[str],
    samples: int,
    device: torch.device,
    layers: int = LAYERS,
    width: int = WIDTH,
    bucket_mb: float | None = None,
) -> list[dict[str, Any]]:
    """All rows: operation, value (a median), unit, low and high (quartiles), goal. ``bucket_mb``: DDP's ``bucket_cap_mb``.

    Raises:
        ConfigurationError: a method is unknown.
    """
    with one_worker(device):
        hooks = () if device.type == "cpu" else (HOOK,)  # which torch refuses over gloo
        contenders: list[str | None] = [None, *hooks, *methods]
        steps = {name: stepper(name, device, layers, width, bucket_mb) for name in contenders}
        for step in steps.values():
            seconds(step, device, _WARM_STEPS)
        ratios: dict[str, list[float]] = {name: [] for name in (*hooks, *methods)}
        plain = []
        for _ in track(range(samples), "steps", console=Console(stderr=True), transient=True):
            took = {name: seconds(step, device, _STEPS) for name, step in steps.items()}
            plain.append(took[None])
            for name, values in ratios.items():
                values.append(took[name] / took[None])
    model = (
        f"{layers} layers of width {width}, one worker{'' if bucket_mb is None else f', buckets of {bucket_mb:g} MB'}"
    )
    rows = [make_row(f"a step of plain DDP, {model}", [1e3 * value / _STEPS for value in plain], "ms", 0.0)]
    return [
        *rows,
        *(make_row(f"{name}: a step / plain DDP, {model}", values, "x", 1.0) for name, values in ratios.items()),
    ]


@contextmanager
def one_worker(device: torch.device) -> Iterator[None]:
    """A context with a process group of one worker, over NCCL where the device is a GPU."""
    backend = "gloo" if device.type == "cpu" else "nccl"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def stepper(
    method: str | None, device: torch.device, layers: int, width: int, bucket_mb: float | None = None
) -> Callable[[], None]:
    """A function that makes a step of training under a method, under torch's hook, or plain for None."""
    torch.manual_seed(0)
    with device:
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    model = DistributedDataParallel(
        encoder, device_ids=None if device.type == "cpu" else [device], bucket_cap_mb=bucket_mb or 25
    )
    if method == HOOK:
        model.register_comm_hook(None, bf16_compress_hook)
    elif method is not None:
        grace.attach(model, method)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(BATCH, WORDS, width, generator=torch.Generator().manual_seed(0)).to(device)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


def seconds(step: Callable[[], None], device: torch.device, steps: int) -> float:
    """Time of so many steps, to the end of the device's part."""
    start = time.perf_counter()
    for _ in range(steps):
        step()
    if device.type != "cpu":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start
