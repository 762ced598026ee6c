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
    module = _file(where, spec, kind) if where.endswith(".py") else _module(where, spec, kind)
    try:
        return getattr(module, name)
    except AttributeError as error:
        raise ConfigurationError(f"{kind} {spec!r} cannot be loaded: {where} has no {name!r}") from error


def _module(where: str, spec: str, kind: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:  # a console script, unlike python -m, does not have it
        sys.path.insert(0, here)
    try:
        return importlib.import_module(where)
    except Exception as error:  # whatever somebody's module raises
        raise ConfigurationError(f"{kind} {spec!r} cannot be loaded: {error}") from error


def _file(where: str, spec: str, kind: str) -> ModuleType:
    path = Path(where).resolve()
    if not path.is_file():
        raise ConfigurationError(f"{kind} {spec!r} cannot be loaded: there is no file {where}")
    name = f"_grace_file_{path.stem}"
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        found.loader.exec_module(module)
    except Exception as error:  # whatever somebody's file raises
        del sys.modules[name]
        raise ConfigurationError(f"{kind} {spec!r} cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def target_of(text: str) -> object:
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
