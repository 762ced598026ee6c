"""The suite's tasks on other toolkits than torch: the same data, weights, schedules and metrics; another model and step.

No toolkit is imported before a worker needs it.
"""

from __future__ import annotations

import importlib.util

from grace.errors import ConfigurationError, unknown

_PACKAGES = {"torch": (), "tensorflow": ("tensorflow", "keras"), "jax": ("jax", "optax")}
TOOLKITS = tuple(_PACKAGES)
TORCH = TOOLKITS[0]
PORTED = ("lstm_ptb", "lstm_small", "ncf", "ncf_small", "resnet20", "resnet20_small")  # tasks that all toolkits have


def check_toolkit(toolkit: str, task: str) -> None:
    """Checks that this toolkit can train this task here; imports nothing.

    Raises:
        UnknownNameError: no such toolkit.
        ConfigurationError: it does not have this task, or is not installed.
    """
    if toolkit not in _PACKAGES:
        raise unknown("toolkit", toolkit, TOOLKITS)
    if toolkit == TORCH:
        return
    if task not in PORTED:
        raise ConfigurationError(
            f"task {task!r} exists on torch only; tasks with toolkit {toolkit}: {', '.join(PORTED)}"
        )
    for package in _PACKAGES[toolkit]:
        if importlib.util.find_spec(package) is None:
            raise ConfigurationError(
                f"toolkit {toolkit} needs {package}, which is not installed: pip install 'grace-dl[{toolkit}]'"
            )
