"""Packages that find their own modules, so that a new file is enough; and users' own code by name, ``file.py:Class``."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from grace.errors import ConfigurationError

_files: dict[Path, tuple[int, ModuleType]] = {}  # what was imported from a file, and how old the file was


def import_classes(package: str, path: Iterable[str], *bases: type) -> dict[str, type]:
    """Imports every module of a package, but not its subpackages, in the order of their names.

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


def load(spec: str, kind: str) -> object:
    """What ``spec`` names. Modules are looked for in the working directory too.

    Raises:
        ConfigurationError: a file, module or attribute that does not exist, or a module that fails; names ``kind``.
    """
    where, _, name = spec.rpartition(":")
    if not where or not name:
        raise ConfigurationError(f"{kind} {spec!r} cannot be loaded: expected module:Class or file.py:Class")
    try:
        module = _import_file(Path(where)) if where.endswith(".py") else _import_module(where)
    except Exception as error:  # a user's module may raise anything
        raise ConfigurationError(f"{kind} {spec!r} cannot be loaded: {type(error).__name__}: {error}") from error
    try:
        return getattr(module, name)
    except AttributeError as error:
        raise ConfigurationError(f"{kind} {spec!r} cannot be loaded: {where} has no {name!r}") from error


def _import_module(name: str) -> ModuleType:
    if (here := os.getcwd()) not in sys.path:  # a console script, unlike python -m, does not have it
        sys.path.insert(0, here)
    return importlib.import_module(name)


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    path = path.resolve()
    age = path.stat().st_mtime_ns
    if path in _files and _files[path][0] == age:
        return _files[path][1]  # one class, however often it is named
    name = f"_grace_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    _files[path] = age, module
    return module
