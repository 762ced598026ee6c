"""Strings <-> methods: ``"topk:ratio=0.01,memory=none"``. Strict: whatever is unknown is an error."""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any

from grace.contract.compressor import Compressor
from grace.contract.knobs import as_call, spell_value
from grace.contract.method import Method, refuse_unpromised
from grace.contract.wrapping import Layer, layers, own_fields
from grace.errors import ConfigurationError
from grace.registry.composition import Knobs, build, find_outer
from grace.registry.discovery import from_file
from grace.registry.recipes import COMMUNICATORS, MEMORIES, METHODS, WRAPPERS, Recipe, recipe, recipe_of
from grace.schedules import Scheduled

AUTO = "auto"  # what chooses methods, and is none
_WORDS = {"true": True, "false": False, "none": None}
# As in Python. Its own parser is not for several threads at once: "AST constructor recursion depth mismatch" (CPython 3.11).
_FLOAT = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?")


def method(spec: str | Method[Any], **knobs: Any) -> Method[Any]:
    """The survey's recipe for a registered method, with these knobs.

    Args:
        spec: a name, or a name with knobs, ``"topk:ratio=0.01,communicator=allgather,memory=none"``; your own class by its
            place, ``"file.py:Class"`` or ``"module:Class"``, with knobs after another colon; a :class:`~grace.Method` is
            returned as it is.
        knobs: the fields of the method's class; ``communicator`` (allreduce, allgather, broadcast, scatterreduce,
            parameterserver) and its fields; ``memory`` (none, residual, momentum, dgc, distef, ef21, ef21m) and its
            fields, such as ``beta``; ``lossless`` (zlib, zstd), a stage after a compressor; ``start``, the first step that is
            compressed; ``machine``, the workers of one machine, which average in full precision
            (:class:`~grace.communicators.Hierarchical`). A field that two layers share is spelled with its layer:
            ``memory.beta``, ``communicator.server``. A number may follow the step or epoch, such as
            ``ratio=warmup(0.25->0.001, 4 epochs)``, see :class:`grace.schedules.Schedule`.

    Raises:
        UnknownNameError: an unknown method, knob, communicator or memory; names the nearest.
        ConfigurationError: a knob out of range, or an impossible composition.
        CompositionError: a conversation that does not promise the same mean on all ranks.

    Example:
        >>> method("topk", ratio=0.02)
        ErrorFeedback(method=Allgather(compressor=TopK(ratio=0.02, index='auto', values='float32')),
                      beta=1.0, gamma=1.0)
        >>> method("topk:memory.beta=0.9") == method("topk:beta=0.9")
        True
    """
    if isinstance(spec, Method):
        if knobs:
            raise ConfigurationError(f"knobs {sorted(knobs)} go with a name; {as_call(spec)} is complete as it is")
        return spec
    refuse_unpromised(spec)
    if str(spec).strip().partition(":")[0] == AUTO:
        raise ConfigurationError(
            f"{str(spec).strip()!r} is no method: it chooses one for each bucket: grace.attach(model, 'auto') of a "
            "DistributedDataParallel model, grace.DistributedOptimizer, grace.tensorflow.Gradients, grace.keras.attach, "
            "grace.jax.compressed_mean_on_host. Here, name one; grace advise says which"
        )
    if not isinstance(spec, str):
        hint = suggest(spec) if isinstance(spec, Compressor) else ""
        raise ConfigurationError(f"a method is a name or a grace.Method, got {as_call(spec)}{hint}")
    name, given = parse(spec)
    if twice := given.keys() & knobs.keys():
        raise ConfigurationError(f"knobs given twice: {', '.join(sorted(twice))}")
    return build(recipe(name), {**given, **knobs})


def read_method(text: str) -> Method[Any]:
    """The method that a file names, such as a state or a plan: a registered one, or a class that the user has named in this
    process. Nothing is imported. :func:`method` is for texts of the user.

    Raises:
        ConfigurationError: what :func:`method` raises, and a class that the user has not named.

    Example:
        >>> read_method("qsgd:bits=4") == method("qsgd:bits=4")
        True
    """
    with from_file():
        return method(text)


def suggest(compressor: Compressor) -> str:
    """The text to write in place of a bare compressor: its recipe, which brings the memory that it needs."""
    *outer, core = layers(compressor)
    entry = recipe_of(type(core))
    if entry is None or entry.communicator is None:
        return (
            ", a compressor, which needs a communicator around it: Allgather(...); where its error must be fed back, "
            "ErrorFeedback(Allgather(...))"
        )
    first = {name: getattr(core, name) for name in own_fields(type(core))[:1]}
    knobs = _describe(entry, core, outer) or {}
    knobs.pop("memory", None)  # the recipe's
    knobs = knobs or {name: value for name, value in first.items() if isinstance(value, float)}
    text = f"{entry.name}:{','.join(f'{knob}={spell_value(value)}' for knob, value in knobs.items())}".rstrip(":")
    return f", a bare compressor; its recipe is {text!r}, that is {as_call(method(text))}"


# ---- reading --------------------------------------------------------------------------------------------------------
def parse(text: str) -> tuple[str, Knobs]:
    """``"topk:ratio=0.01,memory=none"`` -> ``("topk", {"ratio": 0.01, "memory": None})``, and ``"my.py:Mine:k=1"`` ->
    ``("my.py:Mine", {"k": 1})``.

    Values are numbers, ``true``, ``false``, ``none`` or words. Commas within parentheses do not separate.

    Raises:
        ConfigurationError: it does not parse, or a knob occurs twice.
    """
    name, tail = _split_name(text.strip())
    knobs: Knobs = {}
    for part in split_commas(tail) if tail else []:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key or not value:
            raise ConfigurationError(
                f"{text!r}: expected knob=value after ':', got {part!r}; for example topk:ratio=0.01"
            )
        if key in knobs:
            raise ConfigurationError(f"{text!r}: knob {key!r} is given twice")
        knobs[key] = _read_value(value)
    return name, knobs


def strip_parentheses(text: str) -> str:
    """The text within parentheses, which keep its commas together as the value of a knob; another text as it is.

    Example:
        >>> strip_parentheses("(topk:ratio=0.1,memory=none)"), strip_parentheses("topk")
        ('topk:ratio=0.1,memory=none', 'topk')
    """
    return text[1:-1].strip() if text.startswith("(") and text.endswith(")") else text


def _split_name(text: str) -> tuple[str, str]:
    """The name, and its knobs."""
    head, _, tail = text.partition(":")
    if head.endswith(".py") and not tail:
        raise ConfigurationError(f"say which class of {text}: {head}:Class")
    target, _, knobs = tail.partition(":")
    if target.isidentifier() and head not in METHODS:
        return f"{head}:{target}", knobs
    return head, tail


def resolve(text: str) -> str:
    """The string with its file, if it names one, as an absolute path: workers elsewhere find it.

    Example:
        >>> resolve("topk:ratio=0.01")
        'topk:ratio=0.01'
    """
    head, colon, tail = text.strip().partition(":")
    return f"{os.path.abspath(head)}{colon}{tail}" if head.endswith(".py") else text


def short(text: str) -> str:
    """The string without the folder of the file, for tables.

    Example:
        >>> short("/home/me/my.py:Mine:k=1")
        'my.py:Mine:k=1'
    """
    head, colon, tail = text.partition(":")
    return f"{os.path.basename(head)}{colon}{tail}" if head.endswith(".py") else text


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


def _read_value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return int(text, 0)
    except ValueError:
        return float(text) if _FLOAT.fullmatch(text) else text


# ---- writing --------------------------------------------------------------------------------------------------------
def spell(method: Method[Any]) -> str:
    """The string that makes this method, with knobs at their defaults left out; its ``repr`` if there is none.

    Example:
        >>> spell(Allgather(recipe("topk").factory(ratio=0.02)))
        'topk:ratio=0.02,memory=none'
    """
    if isinstance(method, Scheduled):
        return str(method)
    if type(method) in find_outer().values():
        inner: Method[Any] = method.method  # type: ignore[attr-defined]
        text = spell(inner)
        knob = next(knob for knob, factory in find_outer().items() if factory is type(method))
        text = f"{text}{',' if ':' in text else ':'}{knob}={getattr(method, knob)}"
    else:
        *outer, core = layers(method)
        entry = recipe_of(type(core))
        knobs = None if entry is None else _describe(entry, core, outer)
        if entry is None or knobs is None:
            return as_call(method)
        pairs = ",".join(f"{knob}={spell_value(value)}" for knob, value in knobs.items())
        text = f"{entry.name}:{pairs}" if pairs else entry.name
    return text if _reads(text, method) else as_call(method)


def _describe(entry: Recipe, core: Layer, outer: list[Layer]) -> Knobs | None:
    """The knobs that make these layers around the core; None if none do."""
    knobs = _list_changes(core)
    hidden = set(own_fields(type(core)))  # names that would be read as a knob of a layer further in
    memory = "none"
    for layer in reversed(outer):
        factory, changed = type(layer), _list_changes(layer)
        wrapper = next((knob for knob, wrapped in WRAPPERS.items() if wrapped is factory), None)
        if wrapper is not None:
            first = own_fields(factory)[0]
            knobs[wrapper] = getattr(layer, first)
            knobs |= {f"{wrapper}.{knob}": value for knob, value in changed.items() if knob != first}
        elif (communicator := COMMUNICATORS.name_of(factory)) is not None:
            knobs |= {f"communicator.{k}" if k in hidden else k: value for k, value in changed.items()}
            hidden.update(own_fields(factory))
            if communicator != entry.communicator:
                knobs["communicator"] = communicator
        elif (name := MEMORIES.name_of(factory)) is not None and memory == "none":
            memory = name
            changed = _list_changes(layer, dict(entry.memory_knobs) if name == entry.memory else {})
            knobs |= {f"memory.{k}" if k in hidden else k: value for k, value in changed.items()}
        else:
            return None
    if memory != entry.memory:
        knobs["memory"] = memory
    return knobs


def _list_changes(layer: Layer, recipe: Knobs | None = None) -> Knobs:
    """The knobs of a layer that are not at their defaults, or those of the recipe."""
    own = own_fields(type(layer))
    defaults = {field.name: field.default for field in dataclasses.fields(type(layer)) if field.name in own}  # type: ignore[arg-type]
    defaults |= recipe or {}
    values = {name: (getattr(layer, name), default) for name, default in defaults.items()}
    return {name: value for name, (value, default) in values.items() if value != default}


def _reads(text: str, method: Method[Any]) -> bool:
    """True if this string makes this method."""
    try:
        name, knobs = parse(text)
        return build(recipe(name), knobs) == method
    except ConfigurationError:
        return False
