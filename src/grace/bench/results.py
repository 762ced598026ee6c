"""Results: one self-describing JSON document for each run, and the tables made of several.

Version 1 of ``grace.result``: bytes are those that rank 0's collectives moved; times are rank 0's, evaluation left out.
"""

from __future__ import annotations

import csv
import datetime
import io
import os
import platform
import re
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

import grace
from grace.bench.config import RunConfig
from grace.bench.tasks import Task
from grace.method import spelled
from grace.policy import Policy
from grace.run.stats import Stats

SCHEMA, VERSION = "grace.result", 1


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
    }


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """The median and the quartiles around it."""
    if len(values) < 2:
        return dict.fromkeys(("median", "low", "high"), values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "low": low, "high": high}


def result_of(
    config: RunConfig,
    task: Task,
    model: nn.Module,
    stats: Stats,
    *,
    curve: list[dict[str, Any]],
    step_seconds: dict[str, float],
    optimizer: dict[str, Any],
    steps: int,
    epoch_steps: int,
    command: list[str],
    machine: dict[str, Any],
) -> dict[str, Any]:
    """The document of one run whose replicas have been found equal."""
    method = grace.method(config.method)
    policy, none = Policy.of(method), grace.method("none")
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    compressed = [p for name, p in trained.items() if policy.method_for(name, p, 0) != none]
    size = sum(p.numel() for p in trained.values())
    per_step = stats.as_dict()
    fp32 = 2 * (config.workers - 1) / config.workers * 4 * size
    values = [point[task.metric] for point in curve if point[task.metric] is not None]
    best = (max if task.better == "higher" else min)(values, default=None)
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": command,
        "environment": machine,
        "task": config.task,
        "method": config.method,
        "recipe": spelled(method),
        "workers": config.workers,
        "seed": config.seed,
        "granularity": config.granularity,
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
        "final": curve[-1][task.metric],
        "best": best,
        "replicas_agree": True,
        "nonfinite": stats.nonfinite,
        "traffic": {
            "rounds_per_step": per_step["rounds_per_step"],
            "sent_bytes_per_step": per_step["sent_bytes_per_step"],
            "received_bytes_per_step": per_step["received_bytes_per_step"],
            "fp32_allreduce_bytes_per_step": fp32,
            "relative_to_fp32": per_step["sent_bytes_per_step"] / fp32 if fp32 else None,
        },
        "time": {
            "step_ms": {name: 1000 * seconds for name, seconds in step_seconds.items()},
            "codec_ms": 1000 * per_step["codec_seconds_per_step"],
            "exchange_ms": 1000 * per_step["exchange_seconds_per_step"],
        },
        "curve": curve,
    }


def file_name(config: RunConfig) -> str:
    """A file name for the result of this run."""
    parts = [config.task, config.method, f"{config.workers}workers", f"seed{config.seed}"]
    if config.granularity != "parameter":
        parts.append(config.granularity)
    return re.sub(r"[^A-Za-z0-9.=,_-]+", "_", "-".join(parts)) + ".json"


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
