"""Results: one self-describing JSON document for each run, and the tables made of several.

Version 2 of ``grace.result``. Bytes are those that rank 0's collectives moved, times are rank 0's, evaluation and
loading left out. What a run could not measure is null.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime
import hashlib
import io
import json
import os
import platform
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

import grace
from grace.bench.config import RunConfig
from grace.bench.tasks import Task
from grace.knobs import as_call
from grace.policy import Policy
from grace.registry import parse, recipe

if TYPE_CHECKING:
    from grace.bench.training import Measured

SCHEMA, VERSION = "grace.result", 2
_TCP = Path("/proc/sys/net/ipv4/tcp_congestion_control")


def environment(threads: int) -> dict[str, Any]:
    """Where a run took place, as far as it bears on the numbers."""
    return {
        "grace": grace.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads_per_worker": threads,
        "backend": "gloo",
        "tcp": _TCP.read_text().strip() if _TCP.exists() else None,
    }


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """The median and the quartiles around it."""
    if len(values) < 2:
        return dict.fromkeys(("median", "low", "high"), values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "low": low, "high": high}


def identity(config: RunConfig) -> dict[str, Any]:
    """What a document says of a run before it has run: a failed one has this and its error."""
    link, kind = config.network, config.kind
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "kind": kind,
        "family": "baseline" if kind == "baseline" else recipe(parse(config.method)[0]).family,
        "task": config.task,
        "method": config.method,
        "recipe": config.method if kind == "baseline" else as_call(grace.method(config.method)),
        "workers": config.workers,
        "seed": config.seed,
        "granularity": config.granularity,
        "link": {
            "name": link.name,
            "bits_per_second": link.bits_per_second,
            "latency_seconds": link.latency if link.shaped else None,
        },
        "transport": "gloo",
        "config": config.as_dict(),
    }


_RESULT_KEYS = (
    "environment", "data", "paper_row", "optimizer", "steps", "steps_per_epoch", "batch_per_worker", "model", "metric",
    "better", "final", "best", "target", "replicas_agree", "nonfinite", "traffic", "nic", "time", "memory", "prediction",
)  # fmt: skip


def failure_of(config: RunConfig, error: str, command: list[str]) -> dict[str, Any]:
    """The document of a run that failed."""
    nothing = dict.fromkeys(_RESULT_KEYS)
    return {**identity(config), "status": "failed", "error": error, "command": command, **nothing, "curve": []}


def result_of(
    config: RunConfig,
    task: Task,
    model: nn.Module,
    measured: Measured,
    *,
    curve: list[dict[str, Any]],
    optimizer: dict[str, Any],
    steps: int,
    epoch_steps: int,
    command: list[str],
    machine: dict[str, Any],
    prediction: dict[str, Any] | None,
) -> dict[str, Any]:
    """The document of one run whose replicas, if it has replicas, have been found equal."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    compressed = _compressed(config, trained)
    size = sum(p.numel() for p in trained.values())
    fp32 = 2 * (config.workers - 1) / config.workers * 4 * size
    values = [point[task.metric] for point in curve if point[task.metric] is not None]
    best = (max if task.better == "higher" else min)(values, default=None)
    ran, moved = len(measured.seconds), measured.steady
    return {
        **identity(config),
        "status": "ok",
        "error": None,
        "command": command,
        "environment": machine,
        "data": task.data_info(),
        "paper_row": task.paper_row,
        "optimizer": optimizer,
        "steps": steps,
        "steps_per_epoch": epoch_steps,
        "batch_per_worker": task.batch,
        "model": {
            "parameters": size,
            "tensors": len(trained),
            "compressed_parameters": sum(p.numel() for p in compressed),
            "compressed_tensors": len(compressed),
        },
        "metric": task.metric,
        "better": task.better,
        "final": curve[-1][task.metric] if curve else None,
        "best": best,
        "target": reached(task, curve),
        "replicas_agree": None if not curve else True,
        "nonfinite": measured.all.nonfinite,
        "traffic": {
            "rounds_per_step": moved.rounds / ran,
            "sent_bytes_per_step": moved.sent / ran,
            "received_bytes_per_step": moved.received / ran,
            "fp32_allreduce_bytes_per_step": fp32,
            "relative_to_fp32": moved.sent / ran / fp32 if fp32 else None,
        },
        "nic": _nic(measured),
        "time": times_of(measured, config.workers * task.samples_per_batch),
        "memory": {"peak_rss_bytes": measured.peak},
        "prediction": prediction,
        "curve": curve,
    }


def _compressed(config: RunConfig, trained: dict[str, nn.Parameter]) -> list[nn.Parameter]:
    if config.kind == "baseline":
        return []
    policy, none = Policy.of(grace.method(config.method)), grace.method("none")
    return [p for name, p in trained.items() if policy.method_for(name, p, 0) != none]


def _nic(measured: Measured) -> dict[str, float] | None:
    if measured.nic is None:
        return None
    steps = len(measured.seconds)
    return {
        "sent_bytes_per_step": measured.nic.sent / steps,
        "received_bytes_per_step": measured.nic.received / steps,
    }


def times_of(measured: Measured, samples: int) -> dict[str, Any]:
    """The steady state in milliseconds, all workers' samples per second, and the seconds of all steps."""
    steps, steady = len(measured.seconds), measured.steady
    step, compute = quartiles(measured.seconds), statistics.median(measured.compute.seconds)

    def per_step(seconds: float | None) -> float | None:
        return None if seconds is None else 1000 * seconds / steps

    return {
        "step_ms": {name: 1000 * seconds for name, seconds in step.items()},
        "codec_ms": per_step(steady.codec),
        "exchange_ms": per_step(steady.exchange),
        "exposed_ms": max(0.0, 1000 * (step["median"] - compute)) if not measured.silent else 0.0,
        "compute_ms": 1000 * (step["median"] if measured.silent else compute),
        "samples_per_second": samples * steps / sum(measured.seconds),
        "total_seconds": measured.total,
    }


def reached(task: Task, curve: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """When the task's target was first met at an evaluation; null where it was not."""
    if task.target is None:
        return None
    sign = 1 if task.better == "higher" else -1
    for point in curve:
        value = point[task.metric]
        if value is not None and sign * value >= sign * task.target:
            return {"value": task.target, **{key: point[key] for key in ("seconds", "epoch", "step")}}
    return {"value": task.target, "seconds": None, "epoch": None, "step": None}


_NAMED = {"task", "method", "workers", "seed", "granularity", "link", "latency", "timeout"}


def file_name(config: RunConfig) -> str:
    """A file name for the result of this run. Settings that have no place in it stand in a digest, unless they are as
    they are by default: runs of different lengths are different runs.
    """
    parts = [config.task, config.method, f"{config.workers}workers", f"seed{config.seed}"]
    if config.network.shaped:
        parts.append(str(config.network))
    if config.granularity != "parameter":
        parts.append(config.granularity)
    fields = [field for field in dataclasses.fields(config) if field.name not in _NAMED]
    other = {field.name: value for field in fields if (value := getattr(config, field.name)) != field.default}
    if other:
        parts.append(hashlib.sha256(json.dumps(other, sort_keys=True).encode()).hexdigest()[:8])
    return re.sub(r"[^A-Za-z0-9.=,_+-]+", "_", "-".join(parts)) + ".json"


def row(result: dict[str, Any]) -> dict[str, Any]:
    """A result as one line of a table."""
    traffic, times = result["traffic"], result["time"]
    return {
        "method": result["method"],
        result["metric"]: result["final"],
        "best": result["best"],
        "sent_bytes_per_step": traffic["sent_bytes_per_step"],
        "relative_to_fp32": traffic["relative_to_fp32"],
        "rounds_per_step": traffic["rounds_per_step"],
        "codec_ms": times["codec_ms"],
        "exchange_ms": times["exchange_ms"],
        "step_ms": times["step_ms"]["median"],
        "step_ms_low": times["step_ms"]["low"],
        "step_ms_high": times["step_ms"]["high"],
        "optimizer": result["optimizer"]["why"] or "",
    }


def curves_csv(results: Sequence[dict[str, Any]]) -> str:
    """All curves, tidy: one line for each method and evaluation."""
    lines = []
    for result in results:
        fixed = {key: result[key] for key in ("task", "method", "workers", "seed", "granularity")}
        lines += [{**fixed, **point} for point in result["curve"]]
    return _csv(lines)


def summary_csv(results: Sequence[dict[str, Any]]) -> str:
    """One line for each method."""
    return _csv([row(result) for result in results])


def _csv(lines: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for line in lines for key in line)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()
