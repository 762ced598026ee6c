"""Tasks: what is trained, how, and how its quality is measured. A user's own task has the same contract.

A task of the suite is a class with a ``name`` in a module of this package; nothing else lists it.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import GenericAlias

from grace.errors import ConfigurationError, unknown
from grace.registry.discovery import load
from grace_bench.tasks.contract import DataInfo, Source, Task
from grace_bench.tasks.suite import SuiteTask

__all__ = ["TASKS", "DataInfo", "Source", "Task", "find_task"]


def _discover() -> dict[str, type[SuiteTask]]:
    """The tasks of this package's modules, by name: those of the paper's size first."""
    tasks: dict[str, type[SuiteTask]] = {}
    for module in pkgutil.iter_modules(__path__):
        for value in vars(importlib.import_module(f"{__name__}.{module.name}")).values():
            if type(value) is GenericAlias:  # in Python 3.10 one is a class, too
                continue
            if isinstance(value, type) and issubclass(value, SuiteTask) and "name" in vars(value):
                tasks[value.name] = value
    return dict(sorted(tasks.items(), key=lambda item: (bool(item[1].four_worker_steps), item[0])))


TASKS = _discover()
TASKS["digits_small"] = TASKS["digits"]  # the suite's name for it


def find_task(spec: str) -> Task:
    """The task of this name, or of ``module:Class``, which is looked for in the working directory too.

    Raises:
        UnknownNameError: no task of this name.
        ConfigurationError: a module or class that is not there, or that is no task.
    """
    if spec in TASKS:
        return TASKS[spec]()
    if ":" not in spec:
        raise unknown("task", spec, [*TASKS, "module:Class"], "grace tasks prints all tasks; yours is module:Class.")
    kind = load(spec, "task")
    if not (isinstance(kind, type) and issubclass(kind, Task)):
        raise ConfigurationError(
            f"task {spec!r}: {spec.rpartition(':')[2]} is not a subclass of grace_bench.tasks.Task"
        )
    task: Task = kind()
    return task
