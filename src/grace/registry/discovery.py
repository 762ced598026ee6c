"""Packages that find their own modules, so that a new file is enough; and users' own code by name, ``file.py:Class``.

To name code is to run it. So only a user can: what a file names is read within :func:`from_file`, where nothing is imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType

from grace.errors import ConfigurationError

_files: dict[Path, tuple[int, ModuleType]] = {}  # what was imported from a file, and how old the file was
_named: dict[str, object] = {}  # what the user has named in this process, by its place
_refused: ContextVar[list[str] | None] = ContextVar("what files named", default=None)  # None: texts come from the user


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
    for module in sorted(pkgutil.iter_modules(path), key=lambda module: module.name):
        if not module.ispkg:
            name = f"{package}.{module.name}"
            own = (value for value in vars(importlib.import_module(name)).values() if isinstance(value, type))
            classes = (value for value in own if value.__module__ == name and issubclass(value, bases))
            out |= {value.__name__: value for value in classes if not value.__name__.startswith("_")}
    return out


@contextmanager
def from_file() -> Iterator[list[str]]:
    """Within, texts come from a file and not from the user: :func:`load` imports nothing, and finds only what the user has
    named in this process. The working directory does not become a part of ``sys.path``, either. Yields the list of what was
    refused, in words.
    """
    refused: list[str] = []
    token = _refused.set(refused)
    try:
        yield refused
    finally:
        _refused.reset(token)


def load(spec: str, kind: str) -> object:
    """Imports the object that ``spec`` names. Modules are looked for in the working directory too.

    Raises:
        ConfigurationError: a file, module or attribute that does not exist, or a module that fails; names ``kind``. Within
            :func:`from_file` also what the user has not named.
    """
    where, _, name = spec.rpartition(":")
    if not where or not name:
        raise ConfigurationError(f"{kind} {spec!r} cannot be loaded: expected module:Class or file.py:Class")
    place = f"{os.path.abspath(where)}:{name}" if where.endswith(".py") else spec
    if (refused := _refused.get()) is not None:
        if place not in _named:
            refused.append(_refusal(spec, kind))
            raise ConfigurationError(refused[-1])
        return _named[place]
    try:
        module = _import_file(Path(where)) if where.endswith(".py") else _import_module(where)
    except Exception as error:  # a user's module may raise anything
        raise ConfigurationError(f"{kind} {spec!r} cannot be loaded: {type(error).__name__}: {error}") from error
    try:
        value = _named[place] = getattr(module, name)
    except AttributeError as error:
        raise ConfigurationError(f"{kind} {spec!r} cannot be loaded: {where} has no {name!r}") from error
    return value


def _refusal(spec: str, kind: str) -> str:
    """The reason why a file may not name this, and what to do."""
    named = f" ({', '.join(sorted(_named))})" if _named else ""
    first = f"grace.method({spec!r}) first, or " if kind == "method" else ""
    return (
        f"{kind} {spec!r} stands in a file, and Grace does not run code because a file names it; legal there: registered "
        f"{kind}s, and classes that you have named in this process{named}. If you trust that code, name it yourself: "
        f"{first}--trust {spec} on the command line"
    )


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
