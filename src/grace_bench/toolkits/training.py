"""A run on another toolkit than torch, seen from one worker: :class:`grace_bench.runs.training.Training` with another step."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from grace_bench.extras import check_toolkit
from grace_bench.runs import measure
from grace_bench.runs.baselines import Counters, NoExchange, counters_of
from grace_bench.runs.results import Point
from grace_bench.runs.training import MOST, Training
from grace_bench.toolkits.replica import Replica, ReplicaSetup


class _TrainedReplica(NoExchange):
    """A replica whose gradients a registered method exchanges, all in one call after the backward pass."""

    def __init__(self, model: nn.Module, replica: Replica):
        super().__init__(model)
        self._replica = replica

    def count(self) -> Counters:
        assert self._replica.handle is not None
        return counters_of(self._replica.handle.stats)

    def bucket_bytes(self) -> list[int]:
        return [sum(p.nbytes for p in self.model.parameters())]

    def close(self) -> None:
        handle: Any = self._replica.handle
        handle.close()


class ToolkitTraining(Training):
    """The torch model provides the first weights and is evaluated; the toolkit's replica is trained.

    Raises:
        ConfigurationError: the toolkit does not have the task, or is not installed.
    """

    def _measure_compute(self, model: nn.Module, batches: Iterator[Any], momentum: float | None) -> measure.StepTimes:
        config, rates = self.config, [self.task.lr(step) * self.scale for step in range(self.steps)]
        seed = config.seed * MOST + self.rank + 1
        recipe = ReplicaSetup(self.task, model, self._make_optimizer(model, momentum), rates, seed, config.threads)
        self.replica = make_replica(config.toolkit, config.task, recipe)
        self.like = next(batches)
        self.replica.start(self.like)
        timed = measure.StepTimes(batches, lambda batch: self.replica.step(batch, 0))
        timed.ready = {name: 1.0 for name, _ in model.named_parameters()}  # the exchange begins when all are
        return timed

    def _connect(self, model: nn.Module) -> NoExchange:
        config = self.config
        method = None if self.silent else config.method
        self.replica.start(self.like, method, granularity=config.granularity, seed=config.seed)
        return NoExchange(model) if self.silent else _TrainedReplica(model, self.replica)

    def _step(self, trained: NoExchange, optimizer: torch.optim.Optimizer, batch: Any, step: int = 0) -> torch.Tensor:
        return torch.tensor(self.replica.step(batch, step))

    def _evaluate(self, model: nn.Module, step: int, seconds: float, sent: int, loss: float | None) -> Point:
        self.replica.store()
        return super()._evaluate(model, step, seconds, sent, loss)

    def _check_replicas(self, model: nn.Module) -> None:
        self.replica.store()
        super()._check_replicas(model)


def make_replica(toolkit: str, task: str, recipe: ReplicaSetup) -> Replica:
    """The toolkit's replica; imports the toolkit, for the processor and with so many threads where it is the first to."""
    check_toolkit(toolkit, task)
    os.environ |= {"KERAS_BACKEND": toolkit, "NPROC": str(recipe.threads)}  # how many threads XLA has
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # toolkits warn of their own code
        if toolkit == "jax":
            from grace_bench.toolkits.jax import JaxReplica

            return JaxReplica(recipe)
        from grace_bench.toolkits.tensorflow import TensorFlowReplica

        return TensorFlowReplica(recipe)
