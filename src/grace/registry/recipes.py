"""The registry: methods with their recipes, memories, communicators, wrappers. Class decorators fill it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from grace.contract.compressor import Compressor
from grace.contract.knobs import name_owner
from grace.contract.method import Method
from grace.errors import CompositionError, ConfigurationError
from grace.names import Names
from grace.registry.algorithms import ALGORITHMS, say_where
from grace.registry.discovery import load

C = TypeVar("C", bound=type)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A registered method: its class, and what goes around it by default.

    name: its name in strings. factory: its class.
    communicator: that of a Compressor; None for a Method, which has its own exchange.
    memory: "none", or a registered memory. memory_knobs: its knobs that are not at their defaults.
    family: methods that work alike, for tables: "quantization", "sparsification", "low rank", ...
    aliases: names beyond those that follow by rule.
    cases: knobs that tests, laws and goldens run it with, as strings: ``("ratio=0.2", "ratio=1")``; never empty.
    recovers: kinds of input that come back exactly, and with which knobs; see :mod:`grace.verify.exact`.
    """

    name: str
    factory: type
    communicator: str | None = None
    memory: str = "none"
    family: str = "other"
    aliases: tuple[str, ...] = ()
    cases: tuple[str, ...] = ("",)
    recovers: tuple[tuple[str, str], ...] = field(default=())
    memory_knobs: tuple[tuple[str, Any], ...] = ()


METHODS: Names[Recipe] = Names("method", "compressor", "grace.methods", say_where, ALGORITHMS)
COMMUNICATORS: Names[type] = Names("communicator", "communicator", "grace.communicators")
MEMORIES: Names[type] = Names("memory", "memory", "grace.memories")
WRAPPERS: dict[str, type] = {}  # knob -> a Compressor around a Compressor, whose first own field the knob is
OUTER: dict[str, type] = {}  # knob -> a Method around a Method, with the knob as its field
_OWN: dict[str, Recipe] = {}  # of methods that were named by their place, "file.py:Class"


def register(
    name: str,
    *,
    communicator: str | None = None,
    memory: str = "none",
    family: str = "other",
    aliases: tuple[str, ...] = (),
    cases: Sequence[str] = ("",),
    recovers: Mapping[str, str] | None = None,
    memory_knobs: Mapping[str, Any] | None = None,
) -> Callable[[C], C]:
    """Class decorator: gives a :class:`~grace.Compressor` or :class:`~grace.Method` a name and a recipe.

    Args:
        name: lower-case letters, digits and ``_``.
        communicator: for a Compressor, the one that carries it by default, such as "allgather"; not for a Method.
        memory: the one around it by default, such as "residual".
        family: of methods that work alike.
        aliases: more names; the class's name, other cases and hyphens need no alias.
        cases: knobs that laws, goldens and other tests run it with, small enough for tensors of 50 numbers; most of them take
            the first, which should be typical.
        recovers: kinds of input (:mod:`grace.verify.exact`) that come back exactly, and the knobs for that, such as
            ``{"sparse": "ratio=0.03,memory=none"}``.
        memory_knobs: the paper's knobs of the recipe's memory, such as ``{"beta": 0.95}``; by default the memory's own.

    Raises:
        ConfigurationError: a name that is taken or not lower case, or a recipe that does not fit the class.
    """

    def decorate(factory: C) -> C:
        if issubclass(factory, Compressor) != (communicator is not None):
            raise ConfigurationError(f"{name}: a Compressor's recipe names a communicator, a Method's does not")
        if isinstance(cases, str) or not cases:
            raise ConfigurationError(
                f"{name}: cases={cases!r}; legal: a list of at least one string of knobs, such as ['']"
            )
        if communicator is not None:
            COMMUNICATORS.find(communicator)
        if memory != "none":
            MEMORIES.find(memory)
        name_owner(factory, name)
        exact, around = tuple((recovers or {}).items()), tuple((memory_knobs or {}).items())
        METHODS.add(
            name,
            Recipe(name, factory, communicator, memory, family, aliases, tuple(cases), exact, around),
            factory,
            aliases,
        )
        return factory

    return decorate


def register_communicator(name: str) -> Callable[[C], C]:
    """Class decorator: ``communicator=name`` in strings stands for this :class:`~grace.communicators.Communicator`."""

    def decorate(factory: C) -> C:
        COMMUNICATORS.add(name, factory, factory)
        return factory

    return decorate


def register_memory(name: str) -> Callable[[C], C]:
    """Class decorator: ``memory=name`` in strings stands for this :class:`~grace.memories.Memory`."""

    def decorate(factory: C) -> C:
        MEMORIES.add(name, factory, factory)
        return factory

    return decorate


def register_wrapper(knob: str) -> Callable[[C], C]:
    """Class decorator: makes a :class:`~grace.Compressor` that wraps another one a knob of every method that has a
    communicator, such as ``qsgd:lossless=zlib``.
    """

    def decorate(factory: C) -> C:
        WRAPPERS[knob] = factory
        return factory

    return decorate


def register_outer(knob: str) -> Callable[[C], C]:
    """Class decorator: makes a :class:`~grace.Method` that wraps another one a knob of every method: ``topk:machine=8``."""

    def decorate(factory: C) -> C:
        OUTER[knob] = factory
        return factory

    return decorate


def methods() -> tuple[str, ...]:
    """The names of all registered methods, those of installed packages included."""
    return METHODS.names()


def recipe(name: str) -> Recipe:
    """The recipe of a registered name, or of a class that is named by its place: ``file.py:Class``, ``module:Class``.

    Raises:
        UnknownNameError: it is not registered; names the nearest.
        ConfigurationError: a class that cannot be loaded, or is not a method.
    """
    return _find_own(name) if is_own(name) else METHODS.find(name)


def is_own(name: str) -> bool:
    """True if this names a class by its place, and not a registered method."""
    return ":" in name


def _find_own(name: str) -> Recipe:
    """The recipe of a user's own class: the registered one, or the first communicator that takes it and no memory."""
    factory = load(name, "method")
    if not (isinstance(factory, type) and issubclass(factory, Compressor | Method)):
        raise ConfigurationError(f"method {name!r} is neither a subclass of grace.Compressor nor of grace.Method")
    if missing := getattr(factory, "__abstractmethods__", None):
        raise ConfigurationError(f"method {name!r} lacks {', '.join(sorted(missing))}")
    if not dataclasses.is_dataclass(factory):
        raise ConfigurationError(
            f"method {name!r}: decorate the class with @dataclass(frozen=True); its fields are knobs"
        )
    entry = recipe_of(factory)
    if entry is None or entry.name in _OWN:
        communicator = _first_communicator(factory) if issubclass(factory, Compressor) else None
        entry = Recipe(name, factory, communicator, family="own")
    entry = _OWN[name] = dataclasses.replace(entry, name=name)
    return entry


def _first_communicator(factory: type) -> str:
    """The first that takes this compressor; allgather, which takes all, if the compressor cannot be made without knobs."""
    try:
        compressor = factory()
    except TypeError:
        return "allgather"
    for name in COMMUNICATORS.names():
        try:
            COMMUNICATORS.find(name)(compressor)
        except CompositionError:
            continue
        return name
    return "allgather"  # it says why not


def recipe_of(factory: type) -> Recipe | None:
    """The recipe of this very class; None if it is neither registered nor was found by its place."""
    name = METHODS.name_of(factory)
    if name is None:
        return next((entry for entry in _OWN.values() if entry.factory is factory), None)
    return METHODS.find(name)


def documentation(name: str) -> str:
    """The docstring of a registered method's class."""
    return inspect.getdoc(recipe(name).factory) or ""
