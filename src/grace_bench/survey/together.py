"""A run of the survey whose workers exchange the gradients of each step: one model holds what all replicas would hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from grace.run.simulator import Simulator
from grace_bench.runs.config import RunConfig
from grace_bench.runs.results import Optimizer, Point
from grace_bench.runs.training import MOST, Training, add_decay, evaluation_steps

Progress = Callable[[int, int], None]
_BEGINNINGS: dict[tuple[object, ...], Point] = {}


@dataclass(frozen=True)
class Learned:
    """The end of a run. curve: its evaluations. diverged: the first step whose loss was not finite; None: none.
    optimizer: as it was made. parameters: of the model, by name. rounds: of collectives.
    """

    curve: list[Point]
    diverged: int | None
    optimizer: Optimizer
    parameters: Mapping[str, nn.Parameter]
    rounds: int


class Together(Training):
    """A run without processes or a network: :class:`grace.Simulator` exchanges the gradients.

    As under DistributedDataParallel each worker begins a step with rank 0's buffers, has random numbers of its own, and
    applies the same mean; so one model and one optimizer serve all.
    """

    def __init__(self, config: RunConfig, on_progress: Progress):
        super().__init__(config, 0, on_progress)

    def learn(self) -> Learned:
        """Trains and evaluates."""
        config, task, ranks = self.config, self.task, range(self.config.workers)
        torch.manual_seed(config.seed)
        model = task.model()
        add_decay(task, model)
        self.scale, changes = self._adjust_optimizer(model)
        optimizer = self._make_optimizer(model, changes.momentum)
        exchange = Simulator(config.method, config.workers, seed=config.seed)
        batches = [task.batches(rank, config.workers, config.seed) for rank in ranks]
        random = [torch.Generator().manual_seed(config.seed * MOST + rank + 1).get_state() for rank in ranks]
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        marks, curve = evaluation_steps(self.steps, config.evaluations), list[Point]()
        curve.append(self._begin(model))
        model.train()
        for step in range(self.steps):
            losses, gradients = self._gradients(model, optimizer, batches, random, parameters)
            if not all(map(math.isfinite, losses)):
                return Learned(curve, step, changes, parameters, exchange.traffic[0].rounds)
            for name, mean in exchange.step(gradients).items():
                parameters[name].grad = mean
            self._apply(model, optimizer, step)
            self.on_progress(step + 1, self.steps)
            if step + 1 in marks:
                sent = exchange.traffic[0].sent
                curve.append(self._evaluate(model, step + 1, 0.0, sent, losses[0]))
        diverged = None if curve[-1].metrics[task.metric] is not None else self.steps
        return Learned(curve, diverged, changes, parameters, exchange.traffic[0].rounds)

    def _begin(self, model: nn.Module) -> Point:
        """The evaluation at the start, which is the same for all methods: once in this process for each task and seed."""
        config = self.config
        key = config.task, config.data, config.batch, config.workers, config.seed
        if key not in _BEGINNINGS:
            _BEGINNINGS[key] = self._evaluate(model, 0, 0.0, 0, None)
        return _BEGINNINGS[key]

    def _gradients(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        batches: list[Any],
        random: list[torch.Tensor],
        parameters: dict[str, nn.Parameter],
    ) -> tuple[list[float], dict[str, list[torch.Tensor]]]:
        """Each worker's loss and gradients. ``random`` is advanced; buffers end as rank 0 leaves them."""
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        kept, losses = buffers, list[float]()
        gradients: dict[str, list[torch.Tensor]] = {name: [] for name in parameters}
        for rank, stream in enumerate(batches):
            batch = next(stream)
            _restore(model, buffers)
            optimizer.zero_grad()
            torch.set_rng_state(random[rank])
            loss = self.task.loss(model, batch)
            torch.autograd.backward(loss)
            random[rank] = torch.get_rng_state()
            losses.append(loss.item())
            for name, p in parameters.items():
                gradients[name].append(torch.zeros_like(p) if p.grad is None else p.grad.detach().clone())
            if rank == 0:
                kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
        _restore(model, kept)
        return losses, gradients


def _restore(model: nn.Module, buffers: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
