"""What a training run is, as plain data: what the command line asks for and every worker reads."""

from __future__ import annotations

import dataclasses
import math
import os
from dataclasses import dataclass
from typing import Any, Literal

from grace.bench.baselines import BASELINES
from grace.bench.network.links import Link, link
from grace.errors import out_of_range
from grace.registry import method
from grace.run.groups import Granularity

MOST_WORKERS = 256
SYNTHETIC = "synthetic"


@dataclass(frozen=True, slots=True)
class RunConfig:
    """One training run.

    Args:
        task: a task's name or ``module:Class``.
        method: the string that makes the method, or the name of a baseline.
        workers: processes on this machine, 1 to 256.
        steps, epochs: how long; at most one of them. By default the task decides.
        seed: of the model, the data's order and the method.
        granularity: what is compressed as one tensor: "parameter", "bucket" or "model".
        lr: the peak learning rate, instead of the task's own and of what suits the method.
        evaluations: how many times the test set is evaluated, the start not counted, >= 1.
        data: directory of the official files; "synthetic": random batches; None: the embedded data.
        timeout: seconds that a collective, and a run that reports nothing, may take.
        batch: samples of one worker and step, instead of the task's own, >= 1.
        link: the network between the workers: "none" (what is there), "100mbit", "1gbit", "10gbit", "25gbit", ...
        latency: seconds that the link adds on the way from one worker to another.
        cores: threads of each worker; None: its share of the machine's cores.
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
    batch: int | None = None
    link: str = "none"
    latency: float = 0.0
    cores: int | None = None

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
        if not 0 < self.timeout < math.inf:
            raise out_of_range("run", "timeout", self.timeout, "seconds > 0")
        if self.evaluations < 1:
            raise out_of_range("run", "evaluations", self.evaluations, "evaluations >= 1")
        if self.seed < 0:
            raise out_of_range("run", "seed", self.seed, "seed >= 0")
        if self.batch is not None and self.batch < 1:
            raise out_of_range("run", "batch", self.batch, "batch >= 1")
        if self.cores is not None and not 1 <= self.cores <= 1024:
            raise out_of_range("run", "threads", self.cores, "1 to 1024")
        _ = self.network  # says what is wrong with it before any process starts, and
        if self.kind == "method":
            method(self.method)  # so does this

    @property
    def kind(self) -> Literal["method", "baseline"]:
        """What ``method`` names."""
        return "baseline" if self.method in BASELINES else "method"

    @property
    def network(self) -> Link:
        """The link between the workers."""
        return link(self.link, self.latency)

    @property
    def threads(self) -> int:
        """Threads of each worker: the cores are shared."""
        if self.cores is not None:
            return self.cores
        return max(1, (os.cpu_count() or 1) // self.workers)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return dataclasses.asdict(self)
