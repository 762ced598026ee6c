"""Optional packages: a clear message where one is missing."""

from __future__ import annotations

import importlib
from typing import Any

from grace.errors import GraceError


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
