"""The subject of advice: the shapes of a model, its buckets, and a step without communication."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from grace.compute import resources
from grace.errors import ConfigurationError
from grace.predict.timeline import bucket_readiness
from grace.registry.discovery import load
from grace.run.options import Options
from grace_bench.runs.measure import Compute
from grace_bench.tasks import find_task

_FIRST_BYTES = 1 << 20  # of DistributedDataParallel's first bucket


@dataclass(frozen=True, slots=True)
class AdvisedModel:
    """A model. ``shapes``: of its parameters, by name. ``measure``: a step; None where nothing but the model is known."""

    name: str
    shapes: dict[str, tuple[int, ...]]
    measure: Callable[[], Compute] | None

    @property
    def buckets(self) -> list[list[str]]:
        """Names in the buckets of DistributedDataParallel, in the order in which they become ready."""
        groups: list[list[str]] = [[]]
        size, limit = 0, _FIRST_BYTES
        for name in reversed(self.shapes):
            groups[-1].append(name)
            size += 4 * torch.Size(self.shapes[name]).numel()
            if size >= limit:
                groups.append([])
                size, limit = 0, Options.bucket_bytes
        return [names for names in groups if names]

    @property
    def numbers(self) -> tuple[int, ...]:
        """In each bucket."""
        return tuple(sum(torch.Size(self.shapes[name]).numel() for name in names) for names in self.buckets)

    def compute(self, threads: int) -> tuple[float, tuple[float, ...]]:
        """Seconds of a step with so many threads, and when each bucket is ready, as shares of it.

        Raises:
            ConfigurationError: only the model is known.
        """
        if self.measure is None:
            raise ConfigurationError(
                f"model {self.name!r} comes without a batch and a loss: give --step-ms, the milliseconds of a step without "
                "communication, or let the function return (model, batch, loss), where loss(model, batch) is a scalar"
            )
        with resources.threads(threads):
            measured = self.measure()
        sizes = {name: 4 * torch.Size(shape).numel() for name, shape in self.shapes.items()}
        ready = sorted((share, sizes[name]) for name, share in measured.ready.items())
        return statistics.median(measured.seconds), bucket_readiness(ready, [4 * number for number in self.numbers])


def of_task(name: str, batch: int | None = None) -> AdvisedModel:
    """A task of the suite, or ``module:Class``, on synthetic batches where it has them.

    Raises:
        UnknownNameError, ConfigurationError: there is no such task.
    """
    task = find_task(name)
    task.batch = batch or task.batch
    try:
        task.load_synthetic()
    except ConfigurationError:
        task.load(None)
    task.steps = task.default_steps(task.workers)
    model = task.model()
    step = _step_with(task.loss)
    return AdvisedModel(
        name,
        _shapes(name, model),
        lambda: Compute(model, task.optimizer(model), task.batches(0, task.workers, 0), step),
    )


def of_model(target: str) -> AdvisedModel:
    """The model that ``module:function`` returns: a model, or (model, batch, loss), where ``loss(model, batch)`` is a scalar.

    Raises:
        ConfigurationError: it cannot be loaded, or returns something else.
    """
    make = load(target, "model")
    made = make() if callable(make) and not isinstance(make, nn.Module) else make
    model, *more = made if isinstance(made, tuple) else (made,)
    if not isinstance(model, nn.Module) or len(more) not in (0, 2) or (more and not callable(more[1])):
        raise ConfigurationError(
            f"model {target!r} returns {type(made).__name__}; legal: a torch.nn.Module, or (model, batch, loss), where "
            "loss(model, batch) is a scalar"
        )
    shapes = _shapes(target, model)
    if not more:
        return AdvisedModel(target, shapes, None)
    batch, loss = more

    def loss_here(model: nn.Module, batch: Any) -> Tensor:
        try:
            return cast(Tensor, loss(model, batch))
        except Exception as error:  # of the user's own function, which is called here for the first time
            raise ConfigurationError(
                f"loss(model, batch) of {target!r} failed: {type(error).__name__}: {str(error).strip()}; it is given the "
                "model and the batch, as in lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1])"
            ) from error

    step = _step_with(loss_here)

    def measure() -> Compute:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)  # with steps too small to matter
        return Compute(model, optimizer, itertools.repeat(batch), step)

    return AdvisedModel(target, shapes, measure)


def _step_with(loss: Callable[[nn.Module, Any], Tensor]) -> Callable[..., None]:
    """A step on a batch."""

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
        optimizer.zero_grad()
        torch.autograd.backward(loss(model, batch))
        optimizer.step()

    return step


def _shapes(name: str, model: nn.Module) -> dict[str, tuple[int, ...]]:
    shapes = {key: tuple(p.shape) for key, p in model.named_parameters() if p.requires_grad}
    if not shapes:
        raise ConfigurationError(f"model {name!r} has no parameter that requires a gradient")
    return shapes
