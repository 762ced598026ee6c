"""The configuration of a training run, as plain data: the command line makes it and every worker reads it."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from grace.auto.settings import wanted
from grace.contract.knobs import Count, Positive, Range, Steps, check_knobs, name_owner
from grace.errors import ConfigurationError, out_of_range, unknown
from grace.predict.links import Link, link
from grace.registry import method, resolve
from grace.run.options import Granularity
from grace_bench.extras import TOOLKITS, TORCH
from grace_bench.runs.algorithms import find_algorithm
from grace_bench.runs.baselines import BASELINES, NO_COMMUNICATION

MOST_WORKERS = 256
SYNTHETIC = "synthetic"


def baselines_of(toolkit: str) -> tuple[str, ...]:
    """The baselines that a toolkit has. Other than torch, only the limit: there ``none`` is the uncompressed all-reduce."""
    return BASELINES if toolkit == TORCH else (NO_COMMUNICATION,)


@dataclass(frozen=True, slots=True)
class RunConfig:
    """A training run.

    Args:
        task: a task's name or ``module:Class``.
        method: the string that makes the method, "auto" with its knobs, an algorithm such as "diloco:every=32", or the name of
            a baseline.
        workers: processes on this machine, 1 to 256.
        steps, epochs: how long; at most one of them. By default the task decides.
        seed: of the model, the data's order and the method.
        granularity: what is compressed as one tensor: "parameter", "bucket" or "model".
        lr: the peak learning rate, instead of the one that suits the task and the method.
        evaluations: how many times the test set is evaluated, the start not counted, >= 1.
        data: directory of the official files; "synthetic": random batches; None: the embedded data.
        timeout: seconds that a collective may take, and a run without reporting anything.
        batch: samples of one worker and step, instead of the task's own, >= 1.
        link: the network between the workers: "none" (what is there), "100mbit", "1gbit", "10gbit", "25gbit", ...
        latency: seconds that the link adds on the way from one worker to another.
        machines: how many machines the workers are taken to be on, those of one following each other: they share its link, and
            what stays among them does not pass it. None: every worker has a link of its own.
        toolkit: what the model and its step are written in: "torch", "tensorflow" or "jax".
        cores: threads of each worker; None: its share of the machine's cores.
        device: "cpu", or "cuda": each worker on the GPU of its number, or several on one, where there are fewer.
        round: which of several equal runs this is, >= 0: all methods run once, then all again, so that a machine that changes
            its pace does so for all of them.
    """

    task: str
    method: str
    workers: Annotated[int, Range(1, MOST_WORKERS)] = 4
    steps: Count | None = None
    epochs: Positive | None = None
    seed: Steps = 0
    granularity: Granularity = "parameter"
    lr: Positive | None = None
    evaluations: Count = 15
    data: str | None = None
    timeout: Positive = 300.0
    batch: Count | None = None
    link: str = "none"
    latency: float = 0.0
    cores: Annotated[int, Range(1, 1024)] | None = None
    toolkit: str = TORCH
    machines: Count | None = None
    round: Steps = 0
    device: Literal["cpu", "cuda"] = "cpu"

    def __post_init__(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise out_of_range("run", "epochs", self.epochs, "steps or epochs, not both")
        check_knobs(self)
        if self.machines is not None and self.workers % self.machines:
            raise out_of_range("run", "machines", self.machines, f"a divisor of {self.workers} workers")
        object.__setattr__(self, "method", resolve(self.method))
        if self.toolkit not in TOOLKITS:
            raise unknown("toolkit", self.toolkit, TOOLKITS)
        if self.kind == "baseline" and self.method not in baselines_of(self.toolkit):
            raise ConfigurationError(
                f"baseline {self.method!r} is torch's own: toolkit {self.toolkit} does not have it"
            )
        if self.device != "cpu" and self.toolkit != TORCH:
            raise out_of_range("run", "device", self.device, f"'cpu' with toolkit {self.toolkit}")
        if self.toolkit == "jax" and self.granularity != "parameter":
            raise out_of_range("run", "granularity", self.granularity, "'parameter' with toolkit jax")
        _ = self.network  # an error now, before any process starts; the same holds for
        if self.kind == "method" and wanted(self.method) is None:
            method(self.method)  # the method
        elif self.kind == "algorithm" and (self.toolkit != TORCH or self.granularity != "parameter"):
            raise ConfigurationError(
                f"{self.method} trains replicas of a torch model; legal: --toolkit torch and granularity 'parameter', not "
                f"{self.toolkit} and {self.granularity!r}"
            )
        elif self.kind == "method" and (self.toolkit != TORCH or self.granularity != "parameter"):
            raise ConfigurationError(
                f"{self.method} chooses for the buckets of torch's DistributedDataParallel; legal: --toolkit torch and "
                f"granularity 'parameter', not {self.toolkit} and {self.granularity!r}"
            )

    @property
    def kind(self) -> Literal["method", "baseline", "algorithm"]:
        """The kind of ``method``."""
        if self.method in BASELINES:
            return "baseline"
        return "method" if find_algorithm(self.method) is None else "algorithm"

    @property
    def network(self) -> Link:
        """The link between the workers."""
        network = link(self.link, self.latency)
        if self.machines is None:
            return network
        if not network.shaped:
            raise ConfigurationError(
                f"machines={self.machines} share a link each: add --link 1gbit, or leave --machines out"
            )
        return dataclasses.replace(network, name=f"{network.name}, {self.machines} machines")

    @property
    def threads(self) -> int:
        """Threads of each worker: the cores are shared."""
        if self.cores is not None:
            return self.cores
        return max(1, (os.cpu_count() or 1) // self.workers)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return dataclasses.asdict(self)


name_owner(RunConfig, "run")
