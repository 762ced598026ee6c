"""The contract of a task: of Grace's own tasks and of a user's."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal, TypedDict

import torch
from torch import Tensor, nn

from grace.errors import ConfigurationError

Source = Literal["embedded", "official", "synthetic"]


class DataInfo(TypedDict):
    """Origin of a result's data.

    Attributes:
        name: of the data set. procedural: made by a program, so not real data: pages and figures say so.
        digest: 16 hexadecimal digits of what was loaded; "": unknown.
        source: "embedded" (comes with Grace or with what it needs), "official" (files that the user named),
            "synthetic" (random batches of the right shape, which teach nothing).
    """

    name: str
    procedural: bool
    digest: str
    source: Source


class Task(abc.ABC):
    """A task. The runner sets ``workers``, calls ``load`` or ``load_synthetic``, sets ``steps``, and then calls
    ``model``, ``optimizer``, ``batches`` and ``lr``. A task of your own needs only the abstract methods.

    Attributes:
        metric: the key of ``evaluate`` that is the headline. better: its direction.
        batch: samples of one worker and step. epochs: how long a run is by default.
        workers: how many there are; the runner sets it first, as a batch "of 512 in all" and a learning rate "for each
            256 images" need it.
        steps: how long this run is; the runner sets it before the first ``lr``.
        local_decay: L2 term that is added to the local gradient before it is compressed, outside normalization layers.
        clip: largest norm of the averaged gradient; 0 does not clip.
        paper_row: the row of the survey's Table II that this task is, or stands for; None: none.
        target: the quality of ``metric`` to which the time is measured; None: none.
    """

    metric: str = "accuracy"
    better: Literal["higher", "lower"] = "higher"
    batch: int = 32
    epochs: float = 1
    workers: int = 4
    steps: int = 0
    local_decay: float = 0.0
    clip: float = 0.0
    paper_row: ClassVar[str | None] = None
    target: ClassVar[float | None] = None

    @abc.abstractmethod
    def load(self, root: Path | None) -> None:
        """Reads the data: official files under ``root``, or what is embedded. Never downloads.

        Raises:
            DataError: files that are missing or malformed; the message says which, what was expected, and where the set
                is published.
        """

    def load_synthetic(self) -> None:
        """Instead of ``load``: from now on ``batches`` yields random batches of the shape and type of the real ones, and
        ``evaluate`` returns NaN for the headline. For the time of a step, which needs no data set.

        Raises:
            ConfigurationError: this task has none.
        """
        raise ConfigurationError(
            f"task {type(self).__name__} has no synthetic data: leave --data out, or implement load_synthetic"
        )

    @abc.abstractmethod
    def model(self) -> nn.Module:
        """A fresh model; the caller seeds torch."""

    @abc.abstractmethod
    def steps_per_epoch(self, world: int) -> int:
        """Steps in which ``world`` workers see the data once."""

    def default_steps(self, world: int) -> int:
        """Steps of a run where the user names neither steps nor epochs: ``epochs`` epochs, at least one step."""
        return max(1, round(self.epochs * self.steps_per_epoch(world)))

    @abc.abstractmethod
    def batches(self, rank: int, world: int, seed: int) -> Iterator[Any]:
        """Endless local batches. Each epoch has one permutation, which the workers split among them."""

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

    def data_info(self) -> DataInfo:
        """The data that were loaded. Called after ``load`` or ``load_synthetic``."""
        return {"name": type(self).__name__.lower(), "procedural": False, "digest": "", "source": "embedded"}

    def worker_bytes(self) -> int:
        """Memory that one worker needs at least, in bytes: what torch itself takes, the model with its gradients and the
        optimizer's state, activations, data. May be called before ``load``; 0: unknown.
        """
        return 0

    @property
    def samples_per_batch(self) -> int:
        """Samples of one worker and step, for samples per second."""
        return self.batch

    def decayed(self, model: nn.Module) -> list[nn.Parameter]:
        """The parameters under ``local_decay``: all but those of normalization layers."""
        norms = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
        own = {id(p) for module in model.modules() if isinstance(module, norms) for p in module.parameters()}
        return [p for p in model.parameters() if p.requires_grad and id(p) not in own]
