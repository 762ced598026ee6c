"""A training run, seen from one worker whose process group exists."""

from __future__ import annotations

import copy
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import grace
from grace.auto.settings import wanted
from grace.collectives import AllGather
from grace.errors import AgreementError, ConfigurationError, OptimizerWarning
from grace.predict.probe import Probe
from grace.predict.timeline import shares_of
from grace.run.replicas import digest
from grace.transports.torch_distributed import TorchDistributed
from grace_bench.devices import Placement, move, place, wait_for
from grace_bench.network.interface import ByteCounts, read_counters
from grace_bench.network.namespaces import INTERFACE
from grace_bench.runs import measure
from grace_bench.runs.algorithms import find_algorithm
from grace_bench.runs.baselines import NO_COMMUNICATION, Counters, NoExchange, connect
from grace_bench.runs.config import SYNTHETIC, RunConfig
from grace_bench.runs.link_model import predict
from grace_bench.runs.optimizers import adjust, set_momentum
from grace_bench.runs.record import result_of
from grace_bench.runs.results import LR_ASKED, Optimizer, Point, Result
from grace_bench.tasks import Task, find_task

MOST = 1 << 16  # more workers than there can be, so that no two pairs (seed, rank) coincide
_REPORT_SECONDS = 0.5
_SILENT_MOST = 120  # steps of a run without communication: it is there for their time alone


@dataclass(slots=True)
class Measurements:
    """Measurements of a run, for :func:`grace_bench.runs.record.result_of`. Seconds, and bytes of one worker.

    Attributes:
        all: counters of the whole run. steady: of the steady state alone. nic: what the interface counted in it.
        seconds: of each step of the steady state. cpu: this process's, for each of them. total: of all
            steps. silent: whether nothing was exchanged. period: steps that are alike as a whole only.
    """

    all: Counters
    steady: Counters
    nic: ByteCounts | None
    silent: bool
    seconds: list[float]
    cpu: float
    total: float
    compute: measure.StepTimes
    buckets: list[int]
    peak: int
    auto: dict[str, Any] | None = None
    period: int = 1


class Training:
    """A run, seen from one worker.

    Args:
        config: the run.
        rank: of this worker, of ``config.workers``.
        on_progress: called on rank 0 with (steps done, steps in all), at most twice a second.
        probe: measures the network for the link model; None: no prediction.
    """

    def __init__(
        self, config: RunConfig, rank: int, on_progress: Callable[[int, int], None], probe: Probe | None = None
    ):
        self.config, self.rank, self.on_progress, self.probe = config, rank, on_progress, probe
        torch.set_num_threads(config.threads)
        self.placement = place_worker(config, rank)
        self.task = load_task(config)
        self.epoch_steps = self.task.steps_per_epoch(config.workers)
        if self.epoch_steps < 1:
            raise ConfigurationError(
                f"task {config.task!r} has too few samples for {config.workers} workers of {self.task.batch} each"
            )
        self.steps = count_steps(config, self.task)
        self.task.steps = self.steps
        self.silent = config.method == NO_COMMUNICATION
        self.algorithm = find_algorithm(config.method)
        self.period = 1 if self.algorithm is None else self.algorithm.period

    def run(self, command: list[str]) -> Result | None:
        """Trains, evaluates, checks; the result on rank 0."""
        config, task = self.config, self.task
        measure.forget_peak()
        torch.manual_seed(config.seed)
        model = task.model().to(self.placement.device)
        torch.manual_seed(config.seed * MOST + self.rank + 1)  # dropout differs between workers
        add_decay(task, model)
        self.scale, changes = self._adjust_optimizer(model)
        trial = task.batches(self.rank, config.workers, config.seed)
        dist.barrier()
        compute = self._measure_compute(model, trial, changes.momentum)
        del trial
        dist.barrier()
        measure.forget_peak()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OptimizerWarning)  # the optimizer gets what the method needs
            trained = self._connect(model)
        optimizer = trained.join(self._make_optimizer(model, changes.momentum))
        curve, measured = self._train(trained, optimizer, compute)
        if not self.silent:
            self._check_replicas(model)
        if self.algorithm is not None:
            self.probe = None  # it models the exchange of each step's gradient
        elif config.machines is not None or any(" along " in kind for kind in measured.steady.collectives):
            self.probe = None  # the link model knows one kind of link
        if self.probe is not None:
            self.probe.learn_copying()
            shares = shares_of(measured.buckets)
            for kind, tally in measured.steady.collectives.items():
                if tally.count:  # up to the largest bucket's
                    self.probe.learn(kind, max(shares) * len(shares) * tally.bytes / tally.count)
        result = None
        if self.rank == 0:
            result = result_of(
                config, task, model, measured, curve=curve, optimizer=changes, steps=self.steps,
                epoch_steps=self.epoch_steps, command=command,
                prediction=None if self.probe is None else predict(self.probe, config, model, measured),
                placement=self.placement,
            )  # fmt: skip
        dist.barrier()
        trained.close()
        return result

    # ---- what other toolkits do differently --------------------------------------------------------------------------
    def _measure_compute(self, model: nn.Module, batches: Iterator[Any], momentum: float | None) -> measure.StepTimes:
        """Times the step without communication; ``momentum`` is that of :meth:`_make_optimizer`."""
        alone = NoExchange(model)
        return measure.Compute(model, self.task.optimizer(model), batches, lambda _, *given: self._step(alone, *given))

    def _connect(self, model: nn.Module) -> NoExchange:
        """The model under the run's method, or its baseline."""
        config = self.config
        if self.algorithm is not None:
            return self.algorithm.connect(model, config.seed, config.lr)
        return connect(config.method, model, config.granularity, config.seed, self.rank, config.workers)

    # ---- the optimizer ----------------------------------------------------------------------------------------------
    def _adjust_optimizer(self, model: nn.Module) -> tuple[float, Optimizer]:
        """The factor on the task's learning rate, and how the optimizer differs from the task's to suit the method."""
        optimizer = self.task.optimizer(model)
        peak = max(self.task.lr(step) for step in range(self.steps))
        adjustment = None
        if self.config.kind == "method" and wanted(self.config.method) is None:
            adjustment = adjust(optimizer, grace.method(self.config.method))
        scale, momentum, why = 1.0, None, None
        lr = self.config.lr
        if lr is None and self.algorithm is not None:
            lr = self.algorithm.lr
        if lr is not None:
            scale, why = lr / peak, LR_ASKED
        elif adjustment is not None:
            scale, why = adjustment.lr_scale, str(adjustment)
        if adjustment is not None and adjustment.momentum is not None:
            momentum = adjustment.momentum
            if self.config.lr is not None:
                why = f"{LR_ASKED}; momentum {momentum:g}: {adjustment.why}"
        if momentum is None:
            momentum = optimizer.param_groups[0].get("momentum")
        name = type(optimizer).__name__
        return scale, Optimizer(name, peak * scale, scale, momentum, why)

    def _make_optimizer(self, model: nn.Module, momentum: float | None) -> torch.optim.Optimizer:
        optimizer = self.task.optimizer(model)
        if momentum is not None:
            set_momentum(optimizer, momentum)
        return optimizer

    # ---- the loop ---------------------------------------------------------------------------------------------------
    def _step(self, trained: NoExchange, optimizer: torch.optim.Optimizer, batch: Any, step: int = 0) -> torch.Tensor:
        """Takes a step; returns the loss. It has ended when the device is done."""
        optimizer.zero_grad()
        batch = move(batch, self.placement.device)
        loss = self.task.loss(trained.model, batch)
        torch.autograd.backward(loss)
        trained.average_gradients()
        self._apply(trained.model, optimizer, step)
        wait_for(self.placement.device)
        return loss

    def _apply(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
        """The optimizer's part of a step."""
        if self.task.clip:
            nn.utils.clip_grad_norm_(model.parameters(), self.task.clip)
        for group in optimizer.param_groups:
            group["lr"] = self.task.lr(step) * self.scale
        optimizer.step()

    def _train(
        self, trained: NoExchange, optimizer: torch.optim.Optimizer, compute: measure.StepTimes
    ) -> tuple[list[Point], Measurements]:
        """The curve of evaluations (rank 0 only), and what was measured."""
        config, model = self.config, trained.model
        batches = self.task.batches(self.rank, config.workers, config.seed)
        steps = min(self.steps, _SILENT_MOST) if self.silent else self.steps
        marks = set() if self.silent else evaluation_steps(self.steps, config.evaluations)
        curve, seconds, last_report = list[Point](), list[float](), 0.0
        steady, before, nic, cpu = measure.steady_from(steps, self.period), Counters(), None, 0.0
        if not self.silent:
            self._note(curve, trained, 0, 0.0, None)
        model.train()
        for step in range(steps):
            batch = next(batches)  # not part of the step: in real training a loader's processes do it
            if step == steady:
                dist.barrier()
                before, nic, cpu = trained.count(), read_counters(INTERFACE), 0.0
            start, spent = time.perf_counter(), time.process_time()
            loss = self._step(trained, optimizer, batch, step)
            if step + 1 == steps:
                trained.end()
            now = time.perf_counter()
            cpu += time.process_time() - spent
            seconds.append(now - start)
            trained.step()
            marked = step + 1 in marks
            if self.rank == 0 and (now - last_report > _REPORT_SECONDS or step + 1 == steps):
                self.on_progress(step + 1, steps)
                last_report = now
            if marked:
                self._note(curve, trained, step + 1, sum(seconds), loss.item())
                dist.barrier()  # so that waiting for rank 0's evaluation is nobody's step time
        return curve, Measurements(
            all=trained.count(),
            steady=trained.count() - before,
            nic=_between(nic, read_counters(INTERFACE)) if config.network.shaped else None,
            silent=self.silent,
            seconds=seconds[steady:],
            cpu=cpu / (steps - steady),
            total=sum(seconds),
            compute=compute,
            buckets=trained.bucket_bytes(),
            peak=measure.peak_bytes(),
            auto=trained.explain(),
            period=self.period,
        )

    def _note(self, curve: list[Point], trained: NoExchange, step: int, seconds: float, loss: float | None) -> None:
        """Rank 0 evaluates the model that all ranks have, and adds it to the curve."""
        sent = trained.count().sent if step else 0
        with trained.shared() as model:
            if self.rank == 0:
                curve.append(self._evaluate(model, step, seconds, sent, loss))

    def _evaluate(self, model: nn.Module, step: int, seconds: float, sent: int, loss: float | None) -> Point:
        if self.placement.device.type != "cpu":  # the test set is the host's
            model = copy.deepcopy(model).cpu()
        metrics = {name: _none_unless_finite(value) for name, value in self.task.evaluate(model).items()}
        train = None if loss is None else _none_unless_finite(loss)
        epoch = step / self.epoch_steps
        return Point(step, epoch, seconds, sent, train, metrics)

    def _check_replicas(self, model: nn.Module) -> None:
        """All workers must hold the same parameters, bit for bit.

        Raises:
            AgreementError: they do not.
        """
        own_digest = digest(model.parameters())
        assert own_digest is not None
        digests = TorchDistributed().run(AllGather(own_digest)).tolist()
        differ = [rank for rank, other in enumerate(digests) if other != digests[0]]
        if differ:
            raise AgreementError(f"after {self.steps} steps the parameters of ranks {differ} are not those of rank 0")


def place_worker(config: RunConfig, rank: int) -> Placement:
    """Place of this worker on its machine; launchers tell its number on its machine, or else it is its rank."""
    local = int(os.environ.get("LOCAL_RANK", rank))
    return place(config.device, local, int(os.environ.get("LOCAL_WORLD_SIZE", config.workers)), config.network.shaped)


def load_task(config: RunConfig) -> Task:
    """The task with its data, as this run wants it."""
    task = find_task(config.task)
    task.workers = config.workers
    if config.batch is not None:
        task.batch = config.batch
    if config.data == SYNTHETIC:
        task.load_synthetic()
    else:
        task.load(None if config.data is None else Path(config.data))
    return task


def count_steps(config: RunConfig, task: Task) -> int:
    """Number of steps of a run."""
    if config.steps is not None:
        return config.steps
    if config.epochs is not None:
        return max(1, round(config.epochs * task.steps_per_epoch(config.workers)))
    return task.default_steps(config.workers)


def evaluation_steps(steps: int, evaluations: int) -> set[int]:
    """The steps after which the test set is evaluated."""
    return {max(1, round(steps * k / evaluations)) for k in range(1, evaluations + 1)}


def _between(before: ByteCounts | None, after: ByteCounts | None) -> ByteCounts | None:
    if before is None or after is None:
        return None
    return ByteCounts(after.sent - before.sent, after.received - before.received)


def add_decay(task: Task, model: nn.Module) -> None:
    """Adds the L2 term to the local gradients, before DistributedDataParallel sees them."""
    if not task.local_decay:
        return
    for p in task.decayed(model):
        p.register_hook(lambda gradient, p=p: gradient.add(p.detach(), alpha=task.local_decay))  # type: ignore[no-untyped-call]


def _none_unless_finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
