"""What a training run is, as plain data: what the command line asks for and every worker reads."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import Any

from grace.adapters.groups import Granularity
from grace.errors import out_of_range
from grace.registry import method

MOST_WORKERS = 256


@dataclass(frozen=True, slots=True)
class RunConfig:
    """One training run.

    Args:
        task: a task's name or ``module:Class``.
        method: the string that makes the method.
        workers: processes on this machine, 1 to 256.
        steps, epochs: how long; at most one of them. By default the task decides.
        seed: of the model, the data's order and the method.
        granularity: what is compressed as one tensor: "parameter", "bucket" or "model".
        lr: the peak learning rate, instead of the task's own and of what suits the method.
        evaluations: how many times the test set is evaluated, the start not counted, >= 1.
        data: directory of the official files; None: the embedded data.
        timeout: seconds that a collective, and a run that reports nothing, may take.
    """

    task: str
    method: str
    workers: int = 4
    steps: int | None = None
    epochs: float | None = None
    seed: int = 0
    granularity: Granularity = "parameter"
    lr: float | None = None
    evaluations: int = 15
    data: str | None = None
    timeout: float = 300.0

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= MOST_WORKERS:
            raise out_of_range("run", "workers", self.workers, f"1 to {MOST_WORKERS}")
        if self.steps is not None and self.epochs is not None:
            raise out_of_range("run", "epochs", self.epochs, "steps or epochs, not both")
        if self.steps is not None and self.steps < 1:
            raise out_of_range("run", "steps", self.steps, "steps >= 1")
        if self.epochs is not None and not self.epochs > 0:
            raise out_of_range("run", "epochs", self.epochs, "epochs > 0")
        if self.granularity not in ("parameter", "bucket", "model"):
            raise out_of_range("run", "granularity", self.granularity, "'parameter', 'bucket', 'model'")
        if self.lr is not None and not self.lr > 0:
            raise out_of_range("run", "lr", self.lr, "lr > 0")
        if self.evaluations < 1:
            raise out_of_range("run", "evaluations", self.evaluations, "evaluations >= 1")
        if self.seed < 0:
            raise out_of_range("run", "seed", self.seed, "seed >= 0")
        method(self.method)  # says what is wrong with it before any process starts

    @property
    def threads(self) -> int:
        """Threads of each worker: the cores are shared."""
        return max(1, (os.cpu_count() or 1) // self.workers)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return dataclasses.asdict(self)
