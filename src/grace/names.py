"""A table of names, and what is registered under them, here or by an installed package."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import re
import sys
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from grace.errors import ConfigurationError, UnknownNameError, unknown

E = TypeVar("E")
_NAME = re.compile(r"[a-z0-9][a-z0-9_]*")


class Names(Generic[E]):
    """Entries by name. Case, ``-`` and ``_`` do not matter when a name is looked up, nor does the suffix ``Compressor``,
    ``Memory`` or ``Communicator`` that GRACE's classes have: ``TopK``, ``top-k`` and ``TopKCompressor`` are ``topk``.

    The name of an entry's class is a name, too, unless another entry has it.

    Args:
        kind: what the entries are, for errors: "method", "memory", "communicator", "transport", "door".
        suffix: what a name may end in.
        group: the entry points of installed packages; their values name a class that registers itself when it is imported.
        elsewhere: the message about a name that is known elsewhere; None: it is not.
        others: the names that are known elsewhere, of which a misspelt one is told.
    """

    def __init__(
        self, kind: str, suffix: str, group: str, elsewhere: Callable[[str], str | None] = lambda name: None,
        others: Iterable[str] = (),
    ):  # fmt: skip
        self.kind, self.suffix, self.group, self._elsewhere, self._others = kind, suffix, group, elsewhere, others
        self._entries: dict[str, E] = {}
        self._classes: dict[str, Callable[..., object]] = {}
        self._aliases: dict[str, str] = {}  # squashed -> name

    def add(self, name: str, entry: E, factory: Callable[..., object], aliases: Iterable[str] = ()) -> None:
        """Registers an entry; ``factory`` is the class or function that it is about. It may register again, as when its module
        is reloaded.

        Raises:
            ConfigurationError: a name that is not lower case, or that another one has.
        """
        for label in (name, *aliases):
            if not _NAME.fullmatch(label):
                raise ConfigurationError(f"{self.kind} name {label!r}: legal are lower-case letters, digits and '_'")
            taken = self._classes.get(self._aliases.get(self._squash(label), ""))
            if taken is not None and qualified_name(taken) != qualified_name(factory):
                raise ConfigurationError(f"{self.kind} name {label!r} is taken by {qualified_name(taken)}")
        self._entries[name], self._classes[name] = entry, factory
        self._aliases.update({self._squash(label): name for label in (name, *aliases)})
        if isinstance(factory, type):
            self._aliases.setdefault(self._squash(factory.__name__), name)

    def find(self, name: object) -> E:
        """The entry of this name.

        Raises:
            UnknownNameError: it is not registered; names the nearest.
            ConfigurationError: an installed package has it, but cannot be loaded.
        """
        text = self._squash(str(name))
        if text not in self._aliases and name in self._points():
            self._load(str(name))
        if text not in self._aliases:
            if (message := self._elsewhere(str(name))) is not None:
                raise UnknownNameError(message)
            raise unknown(self.kind, str(name), {*self.names(), *self._others}, self._hint())
        return self._entries[self._aliases[text]]

    def __contains__(self, name: object) -> bool:
        return self._squash(str(name)) in self._aliases or name in self._points()

    def names(self) -> tuple[str, ...]:
        """All names, those of installed packages included, in alphabetical order."""
        return tuple(sorted(self._entries.keys() | self._points().keys()))

    def in_order(self) -> tuple[str, ...]:
        """All names in the order of registration; then those of installed packages that have not been loaded."""
        return (*self._entries, *sorted(self._points().keys() - self._entries.keys()))

    def name_of(self, factory: Callable[..., object]) -> str | None:
        """The name under which exactly this class is registered."""
        return next((name for name, known in self._classes.items() if known is factory), None)

    def copy(self) -> Names[E]:
        """Another table with the same entries."""
        twin: Names[E] = Names(self.kind, self.suffix, self.group, self._elsewhere, self._others)
        twin._entries.update(self._entries)
        twin._classes.update(self._classes)
        twin._aliases.update(self._aliases)
        return twin

    def _hint(self) -> str:
        """A hint for a name that is not registered."""
        yours = (
            f"If it is your own, import the module that registers it first, or give it an entry point ({self.group})."
        )
        return f"grace list prints all methods. {yours}" if self.kind == "method" else yours

    def _squash(self, name: str) -> str:
        text = re.sub(r"[-_\s]", "", name.lower())
        return text.removesuffix(self.suffix) or text

    def _points(self) -> dict[str, importlib.metadata.EntryPoint]:
        return _read_points(self.group, _look_at_places())

    def _load(self, name: str) -> None:
        point = self._points()[name]
        try:
            point.load()
        except Exception as error:
            raise ConfigurationError(
                f"{self.kind} {name!r} of entry point {point.value!r} does not load: {error}"
            ) from error
        if name not in self._entries:
            raise ConfigurationError(
                f"entry point {point.value!r} loads, but does not register a {self.kind} named {name!r}"
            )


def qualified_name(factory: Callable[..., object]) -> str:
    """The module and name of a class or function."""
    return f"{factory.__module__}.{factory.__qualname__}"


def _look_at_places() -> tuple[tuple[str, int], ...]:
    """The folders in which packages lie, and when each was changed: by an installation, for example."""
    places = []
    for place in sys.path:
        with contextlib.suppress(OSError):  # where nothing lies, or the current folder is no more
            folder = os.path.abspath(place)
            places.append((folder, os.stat(folder).st_mtime_ns))
    return tuple(places)


@functools.lru_cache(maxsize=16)
def _read_points(group: str, places: tuple[tuple[str, int], ...]) -> dict[str, importlib.metadata.EntryPoint]:
    """The entry points of a group, in packages that lie there: all of these are read, which takes tens of milliseconds."""
    return {point.name: point for point in importlib.metadata.entry_points(group=group)}
