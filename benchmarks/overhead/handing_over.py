"""The cost of handing gradients to Grace and back in TensorFlow, Keras and JAX, and of a step with the method ``none``.

- *handing over*: one gradient of 25 million float32, through the toolkit's compiled call to the host, in one worker alone. The
  program does not need it afterwards, as a training step does not. The clock is read when the program comes to that call
  (calling a compiled function takes up to a millisecond by itself), when the exchange asks its transport, when it has the
  answer, and when the toolkit has the mean; the measure is each way over one copy of as many bytes between two buffers that
  are in use already. Page faults of the whole are counted: fresh memory costs more than a copy into it.
- *step*: two processes train the same perceptron, once with ``none`` through Grace over gloo, and once with the toolkit's own
  all-reduce: JAX's psum over gloo, TensorFlow's MultiWorkerMirroredStrategy, and for Keras that of its backend. The measure
  is the ratio of the two.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.overhead.hosts import BEGUN, Host, open_host
from benchmarks.overhead.ladder import in_two_processes, make_row, seconds
from grace.adapters.handover import Handover
from grace.collectives import Collective
from grace.transports.alone import Alone
from grace.transports.torch_distributed import TorchDistributed
from grace_bench.extras import need

NUMBERS = 25_000_000
WIDTH, DEPTH, BATCH = 1024, 3, 32
_WARM = 3


def measure(toolkit: str, samples: int, *, numbers: int = NUMBERS, width: int = WIDTH) -> list[dict[str, Any]]:
    """All rows of a toolkit, as :func:`benchmarks.overhead.ladder.measure` has them.

    Args:
        toolkit: of :data:`benchmarks.overhead.hosts.TOOLKITS`; Keras on the backend that KERAS_BACKEND names.
        samples: of each kind, >= 4.
        numbers: how many float32 are handed over.
        width: of the perceptron's layers.

    Raises:
        MissingExtraError: the toolkit is not installed.
        GraceError: the two processes failed.
    """
    need(toolkit, extra=toolkit)
    return in_two_processes(_worker, toolkit, samples, numbers, width)


def _worker(toolkit: str, samples: int, numbers: int, width: int) -> list[dict[str, Any]]:
    """All rows; rank 0's count."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    host = open_host(toolkit)
    rows = hand_over(host, samples, numbers) if dist.get_rank() == 0 else []
    dist.barrier()
    rows.append(_step_ratio(host, samples, width))
    return rows


class _Clock(Alone):
    """A transport that notes when it was asked and when it has answered."""

    asked = answered = 0.0

    def run(self, op: Collective) -> Tensor:
        self.asked = time.time()
        answer = super().run(op)
        self.answered = time.time()
        return answer


def hand_over(host: Host, samples: int, numbers: int) -> list[dict[str, Any]]:
    """The rows of one gradient's ways there and back."""
    clock = _Clock()
    handover = Handover(["gradient"], [(numbers,)], ["float32"], "none", transport=clock)
    x, target = torch.rand(numbers), torch.zeros(numbers)
    arrays = [host.give(x.numpy())]
    step = host.compile(lambda gradients: (host.now(), host.call(handover.mean, gradients)))
    there, back, faults = [], [], []
    for sample in range(_WARM + samples):
        start = time.perf_counter()
        target.copy_(x)
        copied = time.perf_counter() - start
        faulted, called = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.time()
        came, arrays = step(arrays)
        host.wait(arrays)
        end = time.time()
        if sample >= _WARM:
            begin = max(called, BEGUN + float(came))
            faults.append(float(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faulted))
            there.append((clock.asked - begin) / copied)
            back.append((end - clock.answered) / copied)
    what = f"a gradient of {numbers:,} float32"
    return [
        make_row(f"{what}, {host.name} to Grace / one copy", there, "x", 1.1),
        make_row(f"{what}, Grace to {host.name} / one copy", back, "x", 1.1),
        make_row(f"{what}, page faults both ways, {host.name}", faults, "", 1000),  # fresh memory has 24,414
    ]


def _step_ratio(host: Host, samples: int, width: int) -> dict[str, Any]:
    """Time of a step with the method ``none`` over that of one with gloo's all-reduce by hand."""
    shapes = [(width, width)] * DEPTH
    names = [f"dense{i}/kernel" for i in range(DEPTH)]
    handover = Handover(names, shapes, ["float32"] * DEPTH, "none", transport=TorchDistributed.of_same_ranks())
    plain = _stepper(host, host.own.give, host.own.compile, host.own.mean, shapes)
    ours = _stepper(host, host.give, host.compile, lambda xs: host.call(handover.mean, xs), shapes)
    ratios = []
    for sample in range(_WARM + samples):
        first, second = (plain, ours) if sample % 2 == 0 else (ours, plain)
        times = {run: seconds(run) for run in (first, second)}
        if sample >= _WARM:
            ratios.append(times[ours] / times[plain])
    what = f"step with none in {host.name} / {host.own.name}"
    return make_row(f"{what}, {DEPTH * width * width:,} parameters, 2 processes", ratios, "x", 1.10)


def _stepper(
    host: Host,
    give: Callable[[Any], Any],
    compiler: Callable[[Callable[..., Any]], Callable[..., Any]],
    mean: Callable[[Sequence[Any]], Sequence[Any]],
    shapes: Sequence[tuple[int, int]],
) -> Callable[[], None]:
    random = torch.Generator().manual_seed(0)
    batch = torch.randn(BATCH, shapes[0][0], generator=random).numpy()
    rows, columns = np.ones((1, BATCH), np.float32), np.ones((shapes[-1][1], 1), np.float32)
    params = [give(0.02 * torch.randn(shape, generator=random).numpy()) for shape in shapes]

    def loss(params: Sequence[Any]) -> Any:
        x = host.give(batch)
        for p in params:
            x = host.relu(x @ p)
        return (host.give(rows) @ (x * x) @ host.give(columns))[0, 0]  # a sum, as all toolkits write it

    @compiler
    def step(params: Sequence[Any]) -> list[Any]:
        gradients = list(host.differentiate(loss, params))
        return [p - 1e-3 * x for p, x in zip(params, mean(gradients), strict=True)]

    def run() -> None:
        nonlocal params
        params = step(params)
        host.wait(params)

    return run
