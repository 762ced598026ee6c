"""Tasks: what is trained, how, and how its quality is measured. A user's own task has the same contract."""

from __future__ import annotations

from dataclasses import dataclass

from grace.bench.loading import load
from grace.bench.tasks.contract import DataInfo, Source, Task
from grace.errors import ConfigurationError, unknown

__all__ = ["TASKS", "DataInfo", "Entry", "Source", "Task", "find_task"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A registered task: where its class is, and what it is in one line."""

    path: str
    about: str


TASKS = {"digits": Entry("grace.bench.tasks.digits:Digits", "handwritten digits, a small residual network: real data")}


def find_task(spec: str) -> Task:
    """The task of this name, or of ``module:Class``, which is looked for in the working directory too.

    Raises:
        UnknownNameError: no task of this name.
        ConfigurationError: a module or class that is not there, or that is no task.
    """
    path = TASKS[spec].path if spec in TASKS else spec
    if ":" not in path:
        raise unknown("task", spec, [*TASKS, "module:Class"])
    found = load(path, "task")
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise ConfigurationError(
            f"task {spec!r}: {path.rpartition(':')[2]} is not a subclass of grace.bench.tasks.Task"
        )
    task: Task = found()
    return task
