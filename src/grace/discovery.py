"""Packages that find their own modules: a new file is enough."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable


def import_classes(package: str, path: Iterable[str], *bases: type) -> dict[str, type]:
    """Imports every module of a package, but not its folders, in the order of their names.

    What a type checker sees of such a package is its ``__init__.pyi``, which ``make docs`` writes.

    Args:
        package: its ``__name__``.
        path: its ``__path__``.
        bases: of the classes that are wanted.

    Returns:
        The public classes that these modules define, by name.
    """
    out: dict[str, type] = {}
    for found in sorted(pkgutil.iter_modules(path), key=lambda one: one.name):
        if not found.ispkg:
            name = f"{package}.{found.name}"
            own = (one for one in vars(importlib.import_module(name)).values() if isinstance(one, type))
            mine = (one for one in own if one.__module__ == name and issubclass(one, bases))
            out |= {one.__name__: one for one in mine if not one.__name__.startswith("_")}
    return out
