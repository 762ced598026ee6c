"""A run of the survey: all workers in this process, in lock step, one model that holds what all replicas would hold."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import grace
from grace.contract.knobs import as_call
from grace.errors import ConfigurationError
from grace.run.simulator import Simulator
from grace_bench import machine
from grace_bench.runs.config import RunConfig
from grace_bench.runs.results import Point
from grace_bench.runs.training import MOST, Training, add_decay, evaluation_steps
from grace_bench.survey.row import SurveyRow

Progress = Callable[[int, int], None]
_BEGINNINGS: dict[tuple[object, ...], Point] = {}


class Together(Training):
    """A run without processes or a network: :class:`grace.Simulator` exchanges the gradients.

    As under DistributedDataParallel each worker begins a step with rank 0's buffers, has random numbers of its own, and
    applies the same mean; so one model and one optimizer serve all.
    """

    def __init__(self, config: RunConfig, on_progress: Progress):
        if config.kind != "method" or config.network.shaped or config.toolkit != "torch":
            raise ConfigurationError(
                f"the survey runs methods in torch, not {config.method!r} in {config.toolkit} over {config.link!r}; "
                "grace bench train does"
            )
        if config.granularity != "parameter":
            raise ConfigurationError(f"the survey compresses by parameter, not by {config.granularity}")
        super().__init__(config, 0, on_progress)

    def row(self, protocol: str) -> SurveyRow:
        """Trains and evaluates."""
        config, task = self.config, self.task
        began = time.process_time()
        torch.manual_seed(config.seed)
        model = task.model()
        add_decay(task, model)
        self.scale, changes = self._adjust_optimizer(model)
        optimizer = self._make_optimizer(model, changes.momentum)
        exchange = Simulator(config.method, config.workers, seed=config.seed)
        curve, diverged = self._learn(model, optimizer, exchange)
        values = [point.metrics[task.metric] for point in curve]
        finite = [value for value in values if value is not None]
        size = sum(p.numel() for p in model.parameters() if p.requires_grad)
        info, there = task.data_info(), machine.versions()
        return SurveyRow(
            protocol=protocol, task=config.task, method=grace.spell(grace.method(config.method)),
            recipe=as_call(grace.method(config.method)), workers=config.workers, seed=config.seed, steps=self.steps,
            steps_per_epoch=self.epoch_steps, batch=task.batch, optimizer=changes.name, peak_lr=changes.peak_lr or 0.0,
            momentum=changes.momentum, why=changes.why, metric=task.metric, better=task.better,
            final=None if diverged is not None else values[-1],
            best=(max if task.better == "higher" else min)(finite, default=None), diverged=diverged,
            at=[point.step for point in curve], values=values, sent=[point.sent_bytes for point in curve],
            parameters=size, rounds=exchange.traffic[0].rounds, data=info["name"], digest=info["digest"],
            source=info["source"], procedural=info["procedural"], grace=there["grace"], torch=there["torch"],
            numpy=there["numpy"], python=there["python"], device="cpu", command=_command(config, self.steps),
            cpu_seconds=round(time.process_time() - began, 1),
        )  # fmt: skip

    def _learn(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, exchange: Simulator
    ) -> tuple[list[Point], int | None]:
        """The curve, and the first step whose loss was not finite."""
        config, task, ranks = self.config, self.task, range(self.config.workers)
        batches = [task.batches(rank, config.workers, config.seed) for rank in ranks]
        random = [torch.Generator().manual_seed(config.seed * MOST + rank + 1).get_state() for rank in ranks]
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        marks, curve = evaluation_steps(self.steps, config.evaluations), list[Point]()
        curve.append(self._begin(model))
        model.train()
        for step in range(self.steps):
            losses, gradients = self._gradients(model, optimizer, batches, random, parameters)
            if not all(map(math.isfinite, losses)):
                return curve, step
            for name, mean in exchange.step(gradients).items():
                parameters[name].grad = mean
            self._apply(model, optimizer, step)
            self.on_progress(step + 1, self.steps)
            if step + 1 in marks:
                sent = exchange.traffic[0].sent
                curve.append(self._evaluate(model, step + 1, 0.0, sent, losses[0]))
        return curve, None if curve[-1].metrics[task.metric] is not None else self.steps

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


def _command(config: RunConfig, steps: int) -> str:
    """The command that repeats the run in real processes."""
    words = [
        "grace", "bench", "train", "--tasks", config.task, "--methods", config.method, "--baselines", "", "--workers",
        str(config.workers), "--seeds", str(config.seed), "--steps", str(steps), "--evaluations", str(config.evaluations),
    ]  # fmt: skip
    for name in ("batch", "lr", "data"):
        value = getattr(config, name)
        words += [] if value is None else [f"--{name}", str(value)]
    return shlex.join([*words, "--out", "results"])
