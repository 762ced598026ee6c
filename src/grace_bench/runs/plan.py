"""The plan of a sweep: tasks x methods x workers x links x seeds, in rounds, and whether this machine can run it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grace.auto.settings import wanted
from grace.compute import resources
from grace.errors import ConfigurationError
from grace.registry import method
from grace_bench.devices import device_of
from grace_bench.extras import TORCH, check_toolkit
from grace_bench.network.namespaces import LinkError, why_not
from grace_bench.runs.algorithms import find_algorithm
from grace_bench.runs.baselines import BASELINES, NO_COMMUNICATION
from grace_bench.runs.config import RunConfig, baselines_of
from grace_bench.tasks import TASKS, find_task


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """The plan of a sweep.

    Attributes:
        tasks, methods, workers, links, seeds, toolkits: every combination is a run. baselines: run beside the methods,
            as far as a toolkit has them.
        rounds: how many times each of them runs: all once, then all again, >= 1.
        common: what all runs share: the fields of :class:`grace_bench.runs.config.RunConfig` that are not named above.
    """

    tasks: Sequence[str]
    methods: Sequence[str]
    workers: Sequence[int] = (4,)
    links: Sequence[str] = ("none",)
    seeds: Sequence[int] = (0,)
    baselines: Sequence[str] = BASELINES
    toolkits: Sequence[str] = (TORCH,)
    rounds: int = 1
    common: dict[str, Any] = dataclasses.field(default_factory=dict)

    def runs(self) -> list[RunConfig]:
        """All runs: those that can share workers side by side, round after round, baselines first. The limit is measured once
        in a round, not per seed.

        Raises:
            ConfigurationError: one of them cannot be.
        """
        configs: dict[RunConfig, None] = {}
        for workers in self.workers:
            for link in self.links:
                common = self.common if link != "none" else {**self.common, "latency": 0.0, "machines": None}
                for number, toolkit, task in itertools.product(range(self.rounds), self.toolkits, self.tasks):
                    torchs = set(BASELINES) - set(baselines_of(toolkit))
                    for name in (*(baseline for baseline in self.baselines if baseline not in torchs), *self.methods):
                        for seed in self.seeds[:1] if name == NO_COMMUNICATION else self.seeds:
                            config = RunConfig(
                                task=task, method=name, workers=workers, link=link, seed=seed, toolkit=toolkit, round=number,
                                **common,
                            )  # fmt: skip
                            configs[config] = None
        return list(configs)


def add_baseline(methods: Sequence[str]) -> list[str]:
    """The methods, each once, uncompressed training first.

    Raises:
        UnknownNameError, ConfigurationError: one of them is no method.
    """
    kept: dict[str, str] = {}
    for spec in ["none", *methods]:
        kept.setdefault(spec if find_algorithm(spec) else repr(wanted(spec) or method(spec)), spec)
    return list(kept.values())


def check(configs: Sequence[RunConfig]) -> None:
    """Finds errors that can be known before anything starts.

    Raises:
        UnknownNameError: an unknown task.
        ConfigurationError: a toolkit that does not have a task, or is not installed.
        ConfigurationError: there is no such device here.
        LinkError: a link that this machine cannot make.
    """
    for device in dict.fromkeys(config.device for config in configs):
        device_of(device)
    for task in dict.fromkeys(config.task for config in configs):
        find_task(task)
    for toolkit, task in dict.fromkeys((config.toolkit, config.task) for config in configs):
        check_toolkit(toolkit, task)
    for network in dict.fromkeys(config.network for config in configs if config.network.shaped):
        if (refused := why_not(network)) is not None:
            raise LinkError(refused)


def check_memory(configs: Sequence[RunConfig], available: int | None = None) -> None:
    """Checks that the workers of each run fit into this machine's memory, as far as their tasks can tell.

    Raises:
        ConfigurationError: they do not; the message says how many would.
    """
    free = resources.available_memory() if available is None else available
    for task, batch, workers in dict.fromkeys((config.task, config.batch, config.workers) for config in configs):
        need = _worker_bytes(task, batch, workers)
        if need * workers > free:
            fit = free // need
            raise ConfigurationError(
                f"{workers} workers of {task} need at least {workers * need / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free: "
                + (f"at most {fit} workers fit" if fit else "not even one worker fits")
            )


def _worker_bytes(name: str, batch: int | None, workers: int) -> int:
    """The memory that a worker needs; 0 where that is not known."""
    task = find_task(name)
    task.workers = workers
    task.batch = batch or task.batch
    # the suite's estimate runs the loss in this process, not in a worker: a user's own task must opt in to that
    return task.worker_bytes() if name in TASKS or "worker_bytes" in vars(type(task)) else 0
