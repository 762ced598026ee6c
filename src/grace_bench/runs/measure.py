"""Measurements around a run: its steady state, its memory, and its model without communication."""

from __future__ import annotations

import contextlib
import copy
import gc
import itertools
import math
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

STEADY = 100  # steps of the steady state: the last of a run
_SILENT_SECONDS, _SILENT_STEPS = 2.0, 20  # of the measurement without communication: whichever comes first
_SILENT_LEAST, _SILENT_WARM = 5, 2
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def steady_from(steps: int, period: int = 1) -> int:
    """The first step of the steady state: the last 100 steps, or the last half of fewer than 200; rounded up to whole periods
    of steps that are alike as a whole only, as far as there are so many.
    """
    least = min(STEADY, math.ceil(steps / 2))
    return steps - min(steps // period * period or steps, math.ceil(least / period) * period)


def by_period(seconds: Sequence[float], period: int) -> list[float]:
    """The mean time of a step in each whole period, or in all, where there is none. In seconds."""
    whole = len(seconds) // period * period
    parts = [seconds[at : at + period] for at in range(0, whole, period)] or [seconds]
    return [sum(part) / len(part) for part in parts]


def forget_peak() -> None:
    """Resets :func:`peak_bytes`: from now on it covers only what follows."""
    gc.collect()
    with contextlib.suppress(OSError):
        _CLEAR.write_text("5")


def peak_bytes() -> int:
    """The most memory that this process has held, in bytes."""
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class StepTimes:
    """Steps without communication, timed just before the run in the same processes, on all workers at once, as they share
    the machine.

    Args:
        batches: for ``step``, which does one step.
        seen: where ``step`` notes when each gradient was ready, by name, if it notes that.

    Attributes:
        seconds: of each step. ready: when each parameter's gradient was ready, as a share of the step (medians), by name.
        cpu: processor seconds of a step, of all threads of this process.
    """

    def __init__(self, batches: Iterator[Any], step: Callable[[Any], object], seen: dict[str, float] | None = None):
        self.seconds: list[float] = []
        self.cpu = 0.0
        ready: dict[str, list[float]] = {}
        for count in itertools.count():
            batch = next(batches)
            start, cpu = time.perf_counter(), time.process_time()
            step(batch)
            seconds = time.perf_counter() - start
            if count >= _SILENT_WARM:
                self.seconds.append(seconds)
                self.cpu += time.process_time() - cpu
                for name, moment in (seen or {}).items():
                    ready.setdefault(name, []).append((moment - start) / seconds)
            done = len(self.seconds)
            if done >= _SILENT_STEPS or (done >= _SILENT_LEAST and sum(self.seconds) > _SILENT_SECONDS):
                break
        self.cpu /= len(self.seconds)
        self.ready = {name: statistics.median(shares) for name, shares in ready.items()}


class Compute(StepTimes):
    """Forward, backward and optimizer of a bare torch model, which is restored afterwards."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterator[Any], step: Callable[..., object]
    ):
        saved, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
        seen: dict[str, float] = {}

        def hook(name: str) -> Callable[[torch.Tensor], None]:
            return lambda p: seen.__setitem__(name, time.perf_counter())

        hooks = [
            p.register_post_accumulate_grad_hook(hook(name))  # type: ignore[no-untyped-call]
            for name, p in model.named_parameters()
            if p.requires_grad
        ]
        model.train()
        super().__init__(batches, lambda batch: step(model, optimizer, batch), seen)
        for handle in hooks:
            handle.remove()
        model.zero_grad(set_to_none=True)
        model.load_state_dict(saved)
        torch.set_rng_state(random)
