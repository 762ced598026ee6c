"""Tasks: what is trained, how, and how its quality is measured. A user's own task has the same contract."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from grace.bench.loading import load
from grace.errors import ConfigurationError, unknown

TASKS = {"digits": "grace.bench.tasks.digits:Digits"}


class Task(abc.ABC):
    """One task. The runner calls ``load`` first, then ``model``, ``optimizer`` and ``batches``.

    Attributes:
        metric: the key of ``evaluate`` that is the headline. better: its direction.
        batch: samples of one worker and step. epochs: how long a run is by default.
        steps: how long this run is; the runner sets it before the first ``lr``.
        local_decay: L2 term that is added to the local gradient before it is compressed, outside normalisation layers.
        clip: largest norm of the averaged gradient; 0 does not clip.
    """

    metric: ClassVar[str] = "accuracy"
    better: ClassVar[Literal["higher", "lower"]] = "higher"
    batch: int = 32
    epochs: float = 1
    steps: int = 0
    local_decay: float = 0.0
    clip: float = 0.0

    @abc.abstractmethod
    def load(self, root: Path | None) -> None:
        """Reads the data: official files under ``root``, or what is embedded. Never downloads."""

    @abc.abstractmethod
    def model(self) -> nn.Module:
        """A fresh model; the caller seeds torch."""

    @abc.abstractmethod
    def steps_per_epoch(self, world: int) -> int:
        """Steps in which ``world`` workers see the data once."""

    @abc.abstractmethod
    def batches(self, rank: int, world: int, seed: int) -> Iterator[Any]:
        """Endless local batches. Each epoch has one permutation, which all workers share and split."""

    @abc.abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """A scalar: the mean over the local batch."""

    @abc.abstractmethod
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer; its learning rate is set from ``lr`` before each step."""

    @abc.abstractmethod
    def lr(self, step: int) -> float:
        """The learning rate of a global step, from 0."""

    @abc.abstractmethod
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The metrics on the test set."""

    def decayed(self, model: nn.Module) -> list[nn.Parameter]:
        """The parameters under ``local_decay``: all but those of normalisation layers."""
        norms = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
        own = {id(p) for module in model.modules() if isinstance(module, norms) for p in module.parameters()}
        return [p for p in model.parameters() if p.requires_grad and id(p) not in own]


def find_task(spec: str) -> Task:
    """The task of this name, or of ``module:Class``, which is looked for in the working directory too.

    Raises:
        UnknownNameError: no task of this name.
        ConfigurationError: a module or class that is not there, or that is no task.
    """
    path = TASKS.get(spec, spec)
    if ":" not in path:
        raise unknown("task", spec, [*TASKS, "module:Class"])
    found = load(path, "task")
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise ConfigurationError(
            f"task {spec!r}: {path.rpartition(':')[2]} is not a subclass of grace.bench.tasks.Task"
        )
    task: Task = found()
    return task
