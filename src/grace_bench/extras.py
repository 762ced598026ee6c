"""Optional packages: a clear message where one is missing."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from grace.errors import ConfigurationError, GraceError, unknown

_PACKAGES = {"torch": (), "tensorflow": ("tensorflow", "keras"), "jax": ("jax", "optax", "keras")}
TOOLKITS = tuple(_PACKAGES)
TORCH = TOOLKITS[0]
PORTED = ("lstm_ptb", "lstm_small", "ncf", "ncf_small", "resnet20", "resnet20_small")  # tasks that all toolkits have


class MissingExtraError(GraceError, ImportError):
    """A missing package that one of Grace's extras would install."""


def need(module: str, *, extra: str) -> Any:
    """Imports an optional module.

    Raises:
        MissingExtraError: it is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is installed, but something that it imports is not
        raise MissingExtraError(
            f"this needs {module.partition('.')[0]}, which is not installed: pip install 'grace-dl[{extra}]'"
        ) from error


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
                f"toolkit {toolkit} needs {package}, which is not installed: "
                f"pip install 'grace-dl[{package if package == 'keras' else toolkit}]'"
            )
