"""What is registered: methods with their recipes, memories, communicators, wrappers. Class decorators do it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from grace.compressor import Compressor
from grace.errors import ConfigurationError
from grace.knobs import name_owner
from grace.registry.names import Names

C = TypeVar("C", bound=type)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A registered method: its class, and what goes around it by default.

    name: what strings call it. factory: its class.
    communicator: that of a Compressor; None for a Method, which holds its own exchange.
    memory: "none", or a registered memory.
    family: of methods that work alike, for tables: "quantization", "sparsification", "low rank", ...
    aliases: other names than those that follow by rule.
    cases: knobs with which tests, laws and goldens run it, as strings: ``("ratio=0.2", "ratio=1")``; never empty.
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


METHODS: Names[Recipe] = Names("method", "compressor", "grace.methods")
COMMUNICATORS: Names[type] = Names("communicator", "communicator", "grace.communicators")
MEMORIES: Names[type] = Names("memory", "memory", "grace.memories")
WRAPPERS: dict[str, type] = {}  # knob -> a Compressor around a Compressor, whose first own field the knob is


def register(
    name: str,
    *,
    communicator: str | None = None,
    memory: str = "none",
    family: str = "other",
    aliases: tuple[str, ...] = (),
    cases: Sequence[str] = ("",),
    recovers: Mapping[str, str] | None = None,
) -> Callable[[C], C]:
    """Class decorator: gives a :class:`~grace.Compressor` or :class:`~grace.Method` a name and a recipe.

    Args:
        name: lower-case letters, digits and ``_``.
        communicator: for a Compressor the one that carries it by default, such as "allgather"; not for a Method.
        memory: the one around it by default, such as "residual".
        family: of methods that work alike.
        aliases: more names; the class's name, other cases and hyphens are understood without.
        cases: knobs with which laws, goldens and other tests run it, small enough for tensors of 50 numbers; the first,
            which should be typical, with most of them.
        recovers: kinds of input (:mod:`grace.verify.exact`) that come back exactly, and the knobs for that, such as
            ``{"sparse": "ratio=0.03,memory=none"}``.

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
        exact = tuple((recovers or {}).items())
        METHODS.add(
            name, Recipe(name, factory, communicator, memory, family, aliases, tuple(cases), exact), factory, aliases
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


def methods() -> tuple[str, ...]:
    """The names of all registered methods, those of installed packages included."""
    return METHODS.names()


def recipe(name: str) -> Recipe:
    """The recipe of a registered name.

    Raises:
        UnknownNameError: it is not registered; names the nearest.
    """
    return METHODS.find(name)


def recipe_of(factory: type) -> Recipe | None:
    """The recipe of this very class; None if it is not registered."""
    name = METHODS.name_of(factory)
    return None if name is None else METHODS.find(name)


def documentation(name: str) -> str:
    """The docstring of a registered method's class."""
    return inspect.getdoc(recipe(name).factory) or ""
