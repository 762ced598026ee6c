"""Names and strings for methods: ``"topk:ratio=0.01,memory=none"`` <-> objects. Strict: unknown keys are errors.

A registered class carries its *recipe*: the communicator and the memory that the survey ran it with. Packages add
methods of their own through the entry-point group ``grace.methods``, whose values name a registered class::

    [project.entry-points."grace.methods"]
    mymethod = "mypackage.mymodule:MyMethod"
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.metadata
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from grace.communicators import Allgather, Allreduce, Broadcast, ParameterServer, ScatterReduce
from grace.compressor import Compressor
from grace.errors import CompositionError, ConfigurationError, unknown
from grace.knobs import as_call
from grace.memories import EF21, EF21M, DistEF, ErrorFeedback, Momentum, MomentumCorrection
from grace.method import Method
from grace.schedules import Delayed, Schedule, Scheduled, value_text

ENTRY_POINTS = "grace.methods"
C = TypeVar("C", bound=type)
Knobs = dict[str, Any]

COMMUNICATORS: dict[str, type] = {
    "allreduce": Allreduce,
    "allgather": Allgather,
    "broadcast": Broadcast,
    "scatterreduce": ScatterReduce,
    "parameterserver": ParameterServer,
}
MEMORIES: dict[str, type | None] = {
    "none": None,
    "residual": ErrorFeedback,
    "momentum": Momentum,
    "dgc": MomentumCorrection,
    "distef": DistEF,
    "ef21": EF21,
    "ef21m": EF21M,
}
_WORDS = {"true": True, "false": False, "none": None}
_NAME = re.compile(r"[a-z0-9][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Recipe:
    """A registered method: its class, and what goes around it by default. ``communicator`` is None for a Method."""

    name: str
    factory: type
    communicator: str | None
    memory: str
    family: str
    aliases: tuple[str, ...]

    def build(self, knobs: Knobs) -> Method[Any]:
        """The method with these knobs."""
        return _build(self, knobs)


_recipes: dict[str, Recipe] = {}
_aliases: dict[str, str] = {}
_wrappers: dict[str, type] = {}  # knob -> a Compressor around a Compressor, whose first own field the knob is


def register(
    name: str,
    *,
    communicator: Literal["allreduce", "allgather", "broadcast", "scatterreduce", "parameterserver"] | None = None,
    memory: Literal["none", "residual", "momentum", "dgc", "distef", "ef21", "ef21m"] = "none",
    family: str = "other",
    aliases: tuple[str, ...] = (),
) -> Callable[[C], C]:
    """Class decorator: gives a :class:`~grace.Compressor` or :class:`~grace.Method` a name and a recipe.

    Raises:
        ConfigurationError: a name that is taken or not lower case, or a recipe that does not fit the class.
    """

    def decorate(factory: C) -> C:
        for label in (name, *aliases):
            if not _NAME.fullmatch(label):
                raise ConfigurationError(f"method name {label!r}: legal are lower-case letters, digits and '_'")
            taken = _recipes.get(_aliases.get(label, label))
            if taken is not None and _qualified(taken.factory) != _qualified(factory):
                raise ConfigurationError(f"method name {label!r} is taken by {_qualified(taken.factory)}")
        if issubclass(factory, Compressor) != (communicator is not None):
            raise ConfigurationError(f"{name}: a Compressor's recipe names a communicator, a Method's does not")
        if memory not in MEMORIES:
            raise unknown("memory", memory, MEMORIES)
        _recipes[name] = Recipe(name, factory, communicator, memory, family, aliases)
        _aliases.update(dict.fromkeys(aliases, name))
        return factory

    return decorate


def wrapper(knob: str) -> Callable[[C], C]:
    """Class decorator: makes a :class:`~grace.Compressor` that wraps another one a knob of every method that has a
    communicator, such as ``qsgd:lossless=zlib``.
    """

    def decorate(factory: C) -> C:
        _wrappers[knob] = factory
        return factory

    return decorate


def _qualified(factory: type) -> str:
    return f"{factory.__module__}.{factory.__qualname__}"


def methods() -> tuple[str, ...]:
    """The names of all registered methods, those of installed packages included."""
    return tuple(sorted(_recipes.keys() | _plugins().keys()))


def recipe(name: str) -> Recipe:
    """The recipe of a registered name or alias.

    Raises:
        UnknownNameError: it is not registered.
    """
    name = _aliases.get(name, name)
    if name not in _recipes and name in _plugins():
        _load_plugin(name)
    if name not in _recipes:
        raise unknown("method", name, {*methods(), *_aliases})
    return _recipes[name]


def _plugins() -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}


def _load_plugin(name: str) -> None:
    point = _plugins()[name]
    try:
        point.load()
    except Exception as error:
        raise ConfigurationError(f"method {name!r} of entry point {point.value!r} does not load: {error}") from error
    if name not in _recipes:
        raise ConfigurationError(f"entry point {point.value!r} loads, but does not register a method named {name!r}")


def method(spec: str | Method[Any], **knobs: Any) -> Method[Any]:
    """The survey's recipe for a registered method, with these knobs.

    Args:
        spec: a name, or a name with knobs, ``"topk:ratio=0.01,communicator=allgather,memory=none"``; a
            :class:`~grace.Method` is returned as it is.
        knobs: the fields of the method's class; ``communicator`` (allreduce, allgather, broadcast, scatterreduce,
            parameterserver) and its fields; ``memory`` (none, residual, momentum, dgc, distef, ef21, ef21m) and its
            fields, such as ``beta``; ``lossless`` (zlib, zstd), a stage behind a compressor; ``start``, the first step
            that is compressed. A number may follow the step or epoch, such as ``ratio=warmup(0.25->0.001, 4 epochs)``,
            see :class:`grace.schedules.Schedule`.

    Raises:
        UnknownNameError: an unknown method, knob, communicator or memory; names the nearest.
        ConfigurationError: a knob out of range, or an impossible composition.

    Example:
        >>> method("topk", ratio=0.02)
        ErrorFeedback(method=Allgather(compressor=TopK(ratio=0.02, index='auto', values='float32')),
                      beta=1.0, gamma=1.0)
    """
    if isinstance(spec, Method):
        if knobs:
            raise ConfigurationError(f"knobs {sorted(knobs)} go with a name; {as_call(spec)} is complete as it is")
        return spec
    if not isinstance(spec, str):
        hint = "; put a communicator around it, such as Allgather(...)" if isinstance(spec, Compressor) else ""
        raise ConfigurationError(f"a method is a name or a grace.Method, got {spec!r}{hint}")
    name, given = parse(spec)
    if twice := given.keys() & knobs.keys():
        raise ConfigurationError(f"knobs given twice: {', '.join(sorted(twice))}")
    return _build(recipe(name), {**given, **knobs})


def _build(entry: Recipe, knobs: Knobs) -> Method[Any]:
    """The recipe with these knobs; with a delay or schedules around it, if there are such among the knobs."""
    if "start" in knobs and "start" not in _fields(entry.factory):
        rest = {knob: value for knob, value in knobs.items() if knob != "start"}
        return Delayed(_build(entry, rest), knobs["start"])
    if any(Schedule.is_one(value) for value in knobs.values()):
        given = {knob: Schedule.of(value) if Schedule.is_one(value) else value for knob, value in knobs.items()}
        return Scheduled(entry, tuple(given.items()))
    return _composed(entry, dict(knobs))


def _composed(entry: Recipe, knobs: Knobs) -> Method[Any]:
    communicator = knobs.pop("communicator", entry.communicator)
    memory = knobs.pop("memory", entry.memory)
    memory = "none" if memory is None else memory  # the word "none" parses to None
    if entry.communicator is None and communicator is not None:
        raise CompositionError(f"{entry.name} holds its own exchange and takes no communicator, got {communicator!r}")
    if entry.communicator is not None and communicator not in COMMUNICATORS:
        raise unknown("communicator", str(communicator), COMMUNICATORS)
    if memory not in MEMORIES:
        raise unknown("memory", str(memory), MEMORIES)
    wraps = {knob: knobs.pop(knob) for knob in _wrappers if knob in knobs}
    if wraps and entry.communicator is None:
        raise CompositionError(f"{entry.name} holds its own exchange, and {', '.join(wraps)} is for compressors")
    layers = [entry.factory]
    if communicator is not None:
        layers.append(COMMUNICATORS[communicator])
    outer = MEMORIES[memory]
    if outer is not None:
        layers.append(outer)
    owners: dict[str, type] = {}
    for layer in reversed(layers):  # the method's own knobs win
        owners.update(dict.fromkeys(_fields(layer), layer))
    for knob in knobs:
        if knob not in owners:
            raise unknown(f"knob of {entry.name}", knob, {*owners, *_wrappers, "communicator", "memory", "start"})
    built: Any = None
    for layer in layers:
        own = {knob: value for knob, value in knobs.items() if owners[knob] is layer}
        built = _construct(layer, own) if built is None else _construct(layer, own, built)
        if layer is entry.factory:
            for knob, value in wraps.items():
                built = _wrappers[knob](built, value)
    result: Method[Any] = built
    return result


def _fields(layer: type) -> list[str]:
    """The knobs of a class: the fields of the dataclass but what it wraps."""
    return [f.name for f in dataclasses.fields(layer) if f.init and f.name not in ("compressor", "method")]


def _construct(layer: type, own: Knobs, *inner: Any) -> Any:
    try:
        return layer(*inner, **own)
    except TypeError as error:
        raise ConfigurationError(
            f"{layer.__name__}: {', '.join(f'{k}={v!r}' for k, v in own.items())}: {error}"
        ) from error


# ---- strings --------------------------------------------------------------------------------------------------------
def parse(text: str) -> tuple[str, Knobs]:
    """``"topk:ratio=0.01,memory=none"`` -> ``("topk", {"ratio": 0.01, "memory": None})``.

    Values are numbers, ``true``, ``false``, ``none`` or words. Commas within parentheses do not separate.

    Raises:
        ConfigurationError: it does not parse, or a knob occurs twice.
    """
    name, _, rest = text.strip().partition(":")
    knobs: Knobs = {}
    for part in split_commas(rest) if rest else []:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key or not value:
            raise ConfigurationError(
                f"{text!r}: expected knob=value after ':', got {part!r}; for example topk:ratio=0.01"
            )
        if key in knobs:
            raise ConfigurationError(f"{text!r}: knob {key!r} is given twice")
        knobs[key] = _value(value)
    return name, knobs


def split_commas(text: str) -> list[str]:
    """Splits at the commas that are not within parentheses."""
    parts, depth = [""], 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


def split_methods(text: str) -> list[str]:
    """``"none,topk:ratio=0.01,memory=none,qsgd"`` -> the three methods: a part that is a knob belongs to the one before."""
    out: list[str] = []
    for part in split_commas(text):
        head = part.partition(":")[0]
        if out and "=" in head:
            out[-1] += "," + part
        elif part:
            out.append(part)
    return out


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        number = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return number if isinstance(number, int | float) else text


def spell(method: Method[Any]) -> str:
    """The string that makes this method, with knobs at their defaults left out; its ``repr`` if there is none.

    Example:
        >>> spell(Allgather(recipe("topk").factory(ratio=0.02)))
        'topk:ratio=0.02,memory=none'
    """
    if isinstance(method, Scheduled):
        return str(method)
    if isinstance(method, Delayed):
        text = spell(method.method)
        whole = f"{text}{',' if ':' in text else ':'}start={method.start}"
        return whole if _reads(whole, method) else as_call(method)
    layers: list[Any] = [method]
    while inner := getattr(layers[-1], "method", None) or getattr(layers[-1], "compressor", None):
        layers.append(inner)
    core = layers.pop()
    entry = next((e for e in _recipes.values() if e.factory is type(core)), None)
    if entry is None:
        return as_call(method)
    knobs: Knobs = {}
    memory = "none"
    for layer in (core, *reversed(layers)):
        if type(layer) in _wrappers.values():
            knob = next(k for k, v in _wrappers.items() if v is type(layer))
            knobs[knob] = getattr(layer, _fields(type(layer))[0])
            continue
        knobs.update(
            {
                f.name: getattr(layer, f.name)
                for f in dataclasses.fields(layer)
                if f.name in _fields(type(layer)) and getattr(layer, f.name) != f.default
            }
        )
        if isinstance(layer, tuple(COMMUNICATORS.values())):
            communicator = next(k for k, v in COMMUNICATORS.items() if v is type(layer))
            if communicator != entry.communicator:
                knobs["communicator"] = communicator
        elif layer is not core:
            memory = next((k for k, v in MEMORIES.items() if v is type(layer)), "?")
    if memory != entry.memory:
        knobs["memory"] = memory
    text = entry.name + (":" if knobs else "") + ",".join(f"{k}={value_text(v)}" for k, v in knobs.items())
    return text if _reads(text, method) else as_call(method)


def _reads(text: str, method: Method[Any]) -> bool:
    """Whether this string makes this method."""
    try:
        name, knobs = parse(text)
        return _build(recipe(name), knobs) == method
    except ConfigurationError:
        return False


def documentation(name: str) -> str:
    """The docstring of a registered method's class."""
    return inspect.getdoc(recipe(name).factory) or ""
