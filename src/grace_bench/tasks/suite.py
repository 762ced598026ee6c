"""Shared parts of the tasks of the suite: where data come from, synthetic batches, lengths of runs, memory."""

from __future__ import annotations

import abc
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from grace.errors import ConfigurationError, DataError
from grace_bench.tasks.contract import DataInfo, Source, Task
from grace_bench.tasks.embedded.chunks import Array, digest, stream
from grace_bench.tasks.memory import least_bytes

_RING = 4  # synthetic batches that each worker makes, and then repeats
_RANKS = 20  # low bits of a stream's number, which say whose it is


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set in memory; ``samples`` make an epoch. The digest is computed only when asked for."""

    name: str
    procedural: bool
    samples: int
    digest: Callable[[], str]

    @classmethod
    def of(cls, name: str, arrays: dict[str, Array], samples: int, *, procedural: bool = False) -> DataSet:
        """A data set that is these arrays."""
        return cls(name, procedural, samples, lambda: digest(arrays[key] for key in sorted(arrays)))


class SuiteTask(Task):
    """A task of the suite. A subclass has numbers, and the methods that are abstract here.

    Attributes:
        name: by which it is found; a class without one is no task. about: what it is, in one line.
        network: the model's class. options: its arguments, where they are not its defaults.
        batch_in_all: the batch of all workers together, where the original fixes it; ``load`` divides it. 0: not fixed.
        iterations: the steps of a run, where the original fixes them for any number of workers. 0: not fixed.
        four_worker_steps: of a small task, the steps of a run with 4 workers, which set its epochs.
        synthetic_samples: of the official set, so that synthetic epochs are as long.
        slots: tensors of the parameters' size that the optimizer keeps.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    network: ClassVar[Callable[..., nn.Module]]
    options: ClassVar[dict[str, Any]] = {}
    batch_in_all: ClassVar[int] = 0
    iterations: ClassVar[int] = 0
    four_worker_steps: ClassVar[int] = 0
    synthetic_samples: ClassVar[int] = 0
    slots: ClassVar[int] = 1
    source: Source = "embedded"
    data: DataSet | None = None
    _divided: int = 0  # the batch that ``load`` made of ``batch_in_all``

    @abc.abstractmethod
    def read(self, root: Path | None) -> DataSet:
        """Reads the data."""

    @abc.abstractmethod
    def batches_of(self, rank: int, world: int, seed: int) -> Iterator[Any]:
        """``batches`` of data that were read."""

    @abc.abstractmethod
    def synthetic_batch(self, random: np.random.RandomState) -> Any:
        """A random batch of the shape and type of a real one."""

    @abc.abstractmethod
    def measure(self, model: nn.Module) -> dict[str, float]:
        """``evaluate`` on data that were read; ``model`` is in evaluation mode, gradients are off."""

    def model(self) -> nn.Module:
        return self.network(**self.options)

    def load(self, root: Path | None) -> None:
        self._divide_batch()
        if root is not None and not root.is_dir():
            raise DataError(f"the data directory {root} is {'not a directory' if root.exists() else 'not there'}")
        self.source = "embedded" if root is None else "official"
        self.data = self.read(root)
        self._set_epochs()

    def load_synthetic(self) -> None:
        self._divide_batch()
        self.source = "synthetic"
        self.data = DataSet("random batches", True, self.synthetic_samples, str)
        self._set_epochs()

    def _divide_batch(self) -> None:
        asked = vars(self).get("batch", self._divided) != self._divided  # the caller has set another one
        if self.batch_in_all and not asked:
            if self.batch_in_all < self.workers:
                raise ConfigurationError(f"{self.workers} workers cannot share a batch of {self.batch_in_all} in all")
            self.batch = self._divided = self.batch_in_all // self.workers

    def _set_epochs(self) -> None:
        if self.four_worker_steps:
            self.epochs = self.four_worker_steps / max(1, self.steps_per_epoch(4))
        elif self.iterations:
            self.epochs = self.iterations / max(1, self.steps_per_epoch(self.workers))

    @property
    def samples(self) -> int:
        """The samples of an epoch.

        Raises:
            ConfigurationError: nothing has been loaded.
        """
        if self.data is None:
            raise ConfigurationError(f"task {type(self).__name__}: call load or load_synthetic first")
        return self.data.samples

    def steps_per_epoch(self, world: int) -> int:
        return self.samples // world // self.batch

    def default_steps(self, world: int) -> int:
        return self.iterations or super().default_steps(world)

    def batches(self, rank: int, world: int, seed: int) -> Iterator[Any]:
        if self.source != "synthetic":
            return self.batches_of(rank, world, seed)
        random = stream(seed, 1 + rank)
        return itertools.cycle([self.synthetic_batch(random) for _ in range(_RING)])

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        if self.source == "synthetic":
            return {self.metric: math.nan}  # no number is honest
        model.eval()
        try:
            return self.measure(model)
        finally:
            model.train()

    def data_info(self) -> DataInfo:
        if self.data is None:
            raise ConfigurationError(f"task {type(self).__name__}: call load or load_synthetic first")
        data = self.data
        return {"name": data.name, "procedural": data.procedural, "digest": data.digest(), "source": self.source}

    def worker_bytes(self) -> int:
        self._divide_batch()
        return least_bytes(self, self.synthetic_batch(stream(0, 0)), self.slots)


def epochs_of(
    samples: int, rank: int, world: int, batch: int, seed: int
) -> Iterator[tuple[Array, np.random.RandomState]]:
    """Endless local batches of indices, and random numbers of this worker's own. One permutation for each epoch, which
    all workers share and split; what is left over, less than a batch for each, is not used.
    """
    share = samples // world // batch * batch
    for epoch in itertools.count():
        order = np.arange(samples, dtype=np.int32 if samples < 1 << 31 else np.int64)
        stream(seed, epoch << _RANKS).shuffle(order)
        own = stream(seed, (epoch << _RANKS) + 1 + rank)
        indices = order[rank::world][:share]
        for start in range(0, share, batch):
            yield indices[start : start + batch], own


def tensor(array: Array) -> Tensor:
    """The array's values as a tensor that shares its memory where it can."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())
