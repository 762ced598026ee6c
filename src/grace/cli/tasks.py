"""``grace tasks``: what ``--task`` may name."""

from __future__ import annotations

from typing import Any

import torch

from grace.cli.options import Json
from grace.cli.output import show, write_json
from grace_bench.tasks import TASKS
from grace_command.views import tasks_table

_NO_FILES = ("digits", "digits_small")  # their set comes with scikit-learn


def tasks(as_json: Json = False) -> None:
    """List the tasks: their models' sizes, the headline metric, and how long a run is. All have data that come with Grace.

    Example: [bold]grace tasks[/]
    """
    rows = describe_tasks()
    if as_json:
        write_json(rows)
    else:
        show(tasks_table(rows))


def describe_tasks() -> list[dict[str, Any]]:
    """The tasks of the suite. batch: samples of one worker and step; batch_in_all: of all workers, 0 where it is not fixed."""
    rows = []
    for name, task in TASKS.items():
        with torch.device("meta"):
            sizes = [p.numel() for p in task().model().parameters() if p.requires_grad]
        rows.append({
            "name": name, "about": task.about, "parameters": sum(sizes), "tensors": len(sizes),
            "metric": task.metric, "better": task.better, "batch": task.batch, "batch_in_all": task.batch_in_all,
            "data": ["embedded", "synthetic"] if name in _NO_FILES else ["embedded", "official", "synthetic"],
        })  # fmt: skip
    return rows
