"""A worker's model in another toolkit than torch, and how weights get there from torch's model and back."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from grace.adapters.handle import BaseHandle
from grace.run.options import Granularity
from grace_bench.tasks import Task
from grace_bench.tasks.recommendation import NCF
from grace_bench.tasks.words import LSTM, Carry

Array: TypeAlias = NDArray[Any]
_TABLES = ("user", "item", "embedding")  # whose rows are looked up: the same in all layouts


@dataclass(frozen=True, slots=True)
class ReplicaSetup:
    """Setup of a run's training, whatever the toolkit.

    Attributes:
        task: with its data. model: torch's, with the first weights; evaluation and documents go on using it.
        optimizer: torch's, from which settings are read. rates: the learning rate of each step. seed: of this worker's
            dropout. threads: of this worker.
    """

    task: Task
    model: nn.Module
    optimizer: torch.optim.Optimizer
    rates: Sequence[float]
    seed: int
    threads: int

    @property
    def settings(self) -> dict[str, Any]:
        """The optimizer's options, by torch's names."""
        return self.optimizer.param_groups[0]

    @property
    def decay(self) -> dict[str, float]:
        """The L2 term that is added to each local gradient, by the parameter's name."""
        decayed = {id(p) for p in self.task.decayed(self.model)} if self.task.local_decay else set()
        return {name: self.task.local_decay * (id(p) in decayed) for name, p in self.model.named_parameters()}


class Replica(abc.ABC):
    """A worker's model in a toolkit. It begins with torch's weights, alone."""

    @abc.abstractmethod
    def __init__(self, recipe: ReplicaSetup):
        """Builds the model."""

    @abc.abstractmethod
    def start(
        self, like: Any, method: str | None = None, *, granularity: Granularity = "parameter", seed: int = 0
    ) -> None:
        """Begins training with torch's weights and a fresh optimizer: with this method between the workers of the default
        process group, or alone. It compiles the step for batches like this one, so no step's time includes that.
        """

    @abc.abstractmethod
    def step(self, batch: Any, index: int) -> float:
        """Takes a step; returns the loss before it. ``index`` tells the learning rate. All work is done when it returns."""

    @abc.abstractmethod
    def store(self) -> None:
        """Writes weights and statistics into torch's model."""

    handle: BaseHandle | None = None


def arrays_of(batch: Sequence[Any]) -> tuple[tuple[Array, ...], Carry | None]:
    """A task's batch as numpy arrays, and what its stream carries from one batch to the next, if it does."""
    arrays = tuple(x.numpy() for x in batch if isinstance(x, Tensor))
    return arrays, next((x for x in batch if isinstance(x, Carry)), None)


def from_torch(name: str, x: Tensor) -> Array:
    """A parameter of torch's in the layout of TensorFlow and JAX: inputs before outputs, pixels first."""
    return _turn(name, x.detach().numpy(), (2, 3, 1, 0))


def to_torch(name: str, array: Array) -> Tensor:
    """The way back."""
    return torch.from_numpy(_turn(name, array, (3, 2, 0, 1)))


def _turn(name: str, array: Array, axes: Sequence[int]) -> Array:
    """A copy, with the axes of a convolution in this order, and those of a matrix turned round."""
    if array.ndim == 4:
        array = array.transpose(axes)
    elif array.ndim == 2 and name not in _TABLES:
        array = array.T
    return np.array(array, order="C")


def pick(task: Task, *, images: Callable[[], Any], pairs: Callable[[], Any], words: Callable[[], Any]) -> Any:
    """Calls the function for this task's kind."""
    if isinstance(task, NCF):
        return pairs()
    return words() if isinstance(task, LSTM) else images()


def norms_of(model: nn.Module) -> Iterator[tuple[str, nn.BatchNorm2d]]:
    """The batch norms of torch's model, by name, in their order."""
    return ((name, m) for name, m in model.named_modules() if isinstance(m, nn.BatchNorm2d))
