"""From what a run has measured to its document."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

import grace
from grace.auto.settings import wanted
from grace.collectives import ring_bytes
from grace.contract.knobs import as_call
from grace.registry import parse, recipe, short
from grace.registry.policy import SMALL, Policy
from grace.run.groups import is_uncompressed
from grace_bench import machine
from grace_bench.devices import ON_CPU, Placement, name_device
from grace_bench.extras import TORCH
from grace_bench.runs import results
from grace_bench.runs.algorithms import find_algorithm
from grace_bench.runs.config import RunConfig
from grace_bench.runs.measure import by_period
from grace_bench.runs.results import Failure, Point, Quartiles, Result, quartiles
from grace_bench.tasks import Task

if TYPE_CHECKING:
    from grace_bench.runs.training import Measurements

_TCP = Path("/proc/sys/net/ipv4/tcp_congestion_control")


def find_environment(threads: int, placement: Placement = ON_CPU) -> results.Environment:
    """The environment of a run, as far as it bears on the numbers."""
    tcp = _TCP.read_text().strip() if _TCP.exists() else None
    return results.Environment(
        **machine.versions(), cores=os.cpu_count(), threads_per_worker=threads, tcp=tcp, backend=placement.backend,
        device=name_device(placement.device),
    )  # fmt: skip


def _identity(config: RunConfig, command: list[str]) -> dict[str, Any]:
    """The part of a document that is known before the run."""
    link, kind, auto = config.network, config.kind, wanted(config.method)
    if kind == "method":
        family = "auto" if auto else recipe(parse(config.method)[0]).family
        written = str(auto) if auto else as_call(grace.method(config.method))
    else:
        algorithm = find_algorithm(config.method)
        family, written = kind if algorithm is None else algorithm.family, config.method
    return {
        "created": machine.now(),
        "kind": kind,
        "family": family,
        "task": config.task,
        "method": short(config.method),
        "toolkit": config.toolkit,
        "recipe": written,
        "workers": config.workers,
        "seed": config.seed,
        "round": config.round,
        "granularity": config.granularity,
        "link": results.LinkSetting(link.name, link.bits_per_second, link.latency if link.shaped else None),
        "config": config.as_dict(),
        "command": command,
    }


def failure_of(config: RunConfig, error: str, command: list[str]) -> Failure:
    """The document of a run that failed."""
    return Failure(error=error, **_identity(config, command))


def result_of(
    config: RunConfig,
    task: Task,
    model: nn.Module,
    measured: Measurements,
    *,
    curve: list[Point],
    optimizer: results.Optimizer,
    steps: int,
    epoch_steps: int,
    command: list[str],
    prediction: results.Prediction | None,
    placement: Placement = ON_CPU,
) -> Result:
    """The document of a run; its replicas, if it has any, have been found equal."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    compressed = _find_compressed(config, trained, measured.auto)
    size = sum(p.numel() for p in trained.values())
    fp32 = ring_bytes(4 * size, config.workers)
    values = [value for point in curve if (value := point.metrics[task.metric]) is not None]
    ran, moved = len(measured.seconds), measured.steady
    return Result(
        **_identity(config, command),
        environment=find_environment(config.threads, placement),
        data=results.Data(**task.data_info()),
        paper_row=task.paper_row,
        optimizer=optimizer,
        steps=steps,
        steps_per_epoch=epoch_steps,
        batch_per_worker=task.batch,
        model=results.ModelSize(size, len(trained), sum(p.numel() for p in compressed), len(compressed)),
        metric=task.metric,
        better=task.better,
        final=curve[-1].metrics[task.metric] if curve else None,
        best=(max if task.better == "higher" else min)(values, default=None),
        target=find_target(task, curve),
        replicas_agree=None if not curve else True,
        nonfinite=measured.all.nonfinite,
        traffic=results.StepTraffic(
            rounds_per_step=moved.rounds / ran,
            sent_bytes_per_step=moved.sent / ran,
            received_bytes_per_step=moved.received / ran,
            fp32_allreduce_bytes_per_step=fp32,
            relative_to_fp32=moved.sent / ran / fp32 if fp32 else None,
        ),
        nic=None if measured.nic is None else results.Nic(measured.nic.sent / ran, measured.nic.received / ran),
        time=times_of(measured, config.workers * task.samples_per_batch),
        memory=results.PeakMemory(measured.peak),
        prediction=prediction,
        curve=curve,
        auto=measured.auto,
    )


def _find_compressed(
    config: RunConfig, trained: dict[str, nn.Parameter], auto: dict[str, Any] | None
) -> list[nn.Parameter]:
    if config.kind != "method":
        return []
    if wanted(config.method) is not None:
        methods = {name: bucket["method"] for bucket in (auto or {}).get("buckets", ()) for name in bucket["tensors"]}
        return [
            p
            for name, p in trained.items()
            if p.ndim > 1 and p.numel() >= SMALL and methods.get(name, "none") != "none"
        ]
    policy = Policy.of(grace.method(config.method))
    return [p for name, p in trained.items() if not is_uncompressed(policy.method_for(name, p, 0))]


def times_of(measured: Measurements, samples: int) -> results.Times:
    """The steady state; ``samples``: of all workers, in a step."""
    steps, steady = len(measured.seconds), measured.steady
    step, compute = (
        Quartiles(**quartiles([1000 * s for s in by_period(measured.seconds, measured.period)])),
        1000 * statistics.median(measured.compute.seconds),
    )

    def per_step(seconds: float | None) -> float | None:
        return None if seconds is None else 1000 * seconds / steps

    return results.Times(
        step_ms=step,
        codec_ms=per_step(steady.codec),
        exchange_ms=per_step(steady.exchange),
        exposed_ms=0.0 if measured.silent else max(0.0, step.median - compute),
        compute_ms=step.median if measured.silent else compute,
        samples_per_second=samples * steps / sum(measured.seconds),
        total_seconds=measured.total,
        cpu_ms=1000 * measured.cpu,
    )


def find_target(task: Task, curve: Sequence[Point]) -> results.Target | None:
    """The first evaluation that met the task's target; nulls if none did."""
    if task.target is None:
        return None
    sign = 1 if task.better == "higher" else -1
    for point in curve:
        value = point.metrics[task.metric]
        if value is not None and sign * value >= sign * task.target:
            return results.Target(task.target, point.seconds, point.epoch, point.step)
    return results.Target(task.target)


_NAMED = {
    "task", "method", "toolkit", "workers", "seed", "granularity", "link", "latency", "timeout", "machines", "round",
}  # fmt: skip


def file_name(config: RunConfig) -> str:
    """A file name for the result of this run. Settings that have no place in the name go into a digest, unless they have
    their defaults: runs of different lengths are different runs.
    """
    parts = [config.task, short(config.method), f"{config.workers}workers", f"seed{config.seed}"]
    if config.toolkit != TORCH:
        parts.append(config.toolkit)
    if config.network.shaped:
        parts.append(str(config.network))
    if config.granularity != "parameter":
        parts.append(config.granularity)
    if config.round:
        parts.append(f"round{config.round + 1}")
    fields = [field for field in dataclasses.fields(config) if field.name not in _NAMED]
    other = {field.name: value for field in fields if (value := getattr(config, field.name)) != field.default}
    if short(config.method) != config.method:
        other["method"] = config.method  # files of one name are not one method
    if other:
        parts.append(hashlib.sha256(json.dumps(other, sort_keys=True).encode()).hexdigest()[:8])
    return re.sub(r"[^A-Za-z0-9.=,_+-]+", "_", "-".join(parts)) + ".json"
