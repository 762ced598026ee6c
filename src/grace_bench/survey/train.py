"""Runs of the survey, all workers in this process, as rows of the archive."""

from __future__ import annotations

import shlex
import time

from grace_bench import machine
from grace_bench.runs.config import RunConfig
from grace_bench.runs.training import Training
from grace_bench.survey.plan import check_run
from grace_bench.survey.replicas import Replicas
from grace_bench.survey.row import SurveyRow, name_of
from grace_bench.survey.together import Learned, Progress, Together


def train(config: RunConfig, protocol: str, on_progress: Progress) -> SurveyRow:
    """The row of a run, which trains all its workers in this process.

    Raises:
        ConfigurationError: what :func:`grace_bench.survey.plan.check_run` raises.
    """
    check_run(config)
    began = time.process_time()
    run = Together(config, on_progress) if config.kind == "method" else Replicas(config, on_progress)
    return _to_row(run, run.learn(), protocol, began)


def _to_row(run: Training, learned: Learned, protocol: str, began: float) -> SurveyRow:
    """The row of a run that has ended. ``began``: this process's seconds then."""
    config, task, optimizer = run.config, run.task, learned.optimizer
    method, recipe = name_of(config.method)
    values = [point.metrics[task.metric] for point in learned.curve]
    finite = [value for value in values if value is not None]
    info, there = task.data_info(), machine.versions()
    return SurveyRow(
        protocol=protocol, task=config.task, method=method, recipe=recipe, workers=config.workers, seed=config.seed,
        steps=run.steps, steps_per_epoch=run.epoch_steps, batch=task.batch, optimizer=optimizer.name,
        peak_lr=optimizer.peak_lr or 0.0, momentum=optimizer.momentum, why=optimizer.why, metric=task.metric,
        better=task.better, final=None if learned.diverged is not None else values[-1],
        best=(max if task.better == "higher" else min)(finite, default=None), diverged=learned.diverged,
        at=[point.step for point in learned.curve], values=values, sent=[point.sent_bytes for point in learned.curve],
        parameters=sum(p.numel() for p in learned.parameters.values()), rounds=learned.rounds, data=info["name"],
        digest=info["digest"], source=info["source"], procedural=info["procedural"], grace=there["grace"],
        torch=there["torch"], numpy=there["numpy"], python=there["python"], device="cpu",
        command=_command(config, run.steps), cpu_seconds=round(time.process_time() - began, 1),
    )  # fmt: skip


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
