"""Somebody's own code by name: ``module:attribute`` or ``file.py:attribute``."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from grace.errors import ConfigurationError


def load(spec: str, kind: str) -> object:
    """What ``spec`` names. Modules are looked for in the working directory too.

    Raises:
        ConfigurationError: a file, module or attribute that is not there, or a module that fails; names ``kind``.
    """
    where, _, name = spec.rpartition(":")
    if not where or not name:
        raise ConfigurationError(f"{kind} {spec!r} cannot be loaded: expected module:Class or file.py:Class")
    try:
        module = _import_file(Path(where)) if where.endswith(".py") else _import_module(where)
    except Exception as error:  # whatever somebody's module raises
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
    name = f"_grace_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def parse_target(text: str) -> object:
    """What a user means by a method: ``module:Class``, ``file.py:Class``, or a string that makes a registered one.

    Raises:
        ConfigurationError: it cannot be loaded.
        UnknownNameError: it is neither; names the nearest registered method.
    """
    head, _, tail = text.strip().rpartition(":")
    if text.strip().endswith(".py"):
        raise ConfigurationError(f"say which class of {text}: {text.strip()}:Class")
    if head and tail.isidentifier():
        return load(text.strip(), "method")
    return text
