"""The knobs of methods: what is legal follows from a field's annotation, and is checked when a method is made.

==============================  =======================================================================================
annotation of the field         what is legal
==============================  =======================================================================================
``bool``                        True, False
``int``, ``float``              whole numbers; finite numbers. Neither takes True or False
``Literal["linf", "l2"]``       these
``Share``                       0 < x <= 1
``Count``, ``Steps``            a whole number >= 1; >= 0
``Positive``                    0 < x < inf
``Annotated[int, Range(2, 8)]`` 2, 3, ..., 8; other limits: :class:`PowerOfTwo`, :class:`Odd`, or one of your own
``... | None``                  the same, or none
==============================  =======================================================================================

A field of another type is not checked here.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import numbers
import re
import sys
import types
import typing
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, TypeAlias

from grace.errors import out_of_range


class Limit(Protocol):
    """A limit of a number, beyond its type."""

    def admits(self, value: Any) -> bool:
        """True if this number is legal. It is of the field's type, and finite."""

    def describe(self, knob: str, integer: bool) -> str:
        """The legal values, in words, for a knob of this name."""


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from ``least`` to ``most``, both included; ``above`` and ``below`` are not included."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def admits(self, value: Any) -> bool:
        """True if it lies within."""
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def describe(self, knob: str, integer: bool) -> str:
        """Such as ``0 < ratio <= 1`` or ``2, 3, ..., 16``."""
        if integer and self.least is not None and self.most is not None:
            low, high = int(self.least), int(self.most)
            few = high - low <= 3
            return ", ".join(map(str, range(low, high + 1))) if few else f"{low}, {low + 1}, ..., {high}"
        if integer:
            return f"a whole number >= {self.least}"
        left = f"{self.least} <= " if self.least is not None else "" if self.above is None else f"{self.above} < "
        right = f" <= {self.most}" if self.most is not None else f" < {'inf' if self.below is None else self.below}"
        return f"{left}{knob}{right}"


@dataclass(frozen=True, slots=True)
class PowerOfTwo:
    """2**k from ``least`` to ``most``."""

    least: int
    most: int

    def admits(self, value: Any) -> bool:
        """True if it is one."""
        return bool(self.least <= value <= self.most and value & (value - 1) == 0)

    def describe(self, knob: str, integer: bool) -> str:
        """Such as ``2, 4, 8, ..., 65536``."""
        return f"{self.least}, {2 * self.least}, {4 * self.least}, ..., {self.most}"


@dataclass(frozen=True, slots=True)
class Odd:
    """Odd numbers: 1, 3, 5, ..."""

    def admits(self, value: Any) -> bool:
        """True if it is odd, and at least 1."""
        return bool(value >= 1 and value % 2)

    def describe(self, knob: str, integer: bool) -> str:
        """The odd numbers, as an error names them."""
        return "1, 3, 5, ..."


Share: TypeAlias = Annotated[float, Range(above=0, most=1)]
Positive: TypeAlias = Annotated[float, Range(above=0)]
Count: TypeAlias = Annotated[int, Range(least=1)]
Steps: TypeAlias = Annotated[int, Range(least=0)]
Rotation: TypeAlias = Annotated[int, PowerOfTwo(2, 1 << 16)]


# ---- checking -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Rule:
    """The legal values of one knob: a type (bool, int, float), or choices; a limit; None too, or not."""

    kind: type | None
    choices: tuple[object, ...]
    limit: Limit | None
    optional: bool

    def admits(self, value: object) -> bool:
        if value is None:
            return self.optional
        if self.choices:
            return any(value == choice and type(value) is type(choice) for choice in self.choices)
        if self.kind is bool:
            return isinstance(value, bool)
        if isinstance(value, bool) or not isinstance(value, numbers.Integral if self.kind is int else numbers.Real):
            return False
        return math.isfinite(value) and (self.limit is None or self.limit.admits(value))

    def describe(self, knob: str) -> str:
        if self.choices:
            text = ", ".join(map(repr, self.choices))
        elif self.kind is bool:
            text = "True, False"
        elif self.limit is not None:
            text = self.limit.describe(knob, self.kind is int)
        else:
            text = "a whole number" if self.kind is int else "a finite number"
        return f"{text}, or none" if self.optional else text


def check_knobs(instance: object) -> None:
    """Checks the fields of a dataclass against their annotations.

    Raises:
        ConfigurationError: a value of another type or out of range; says what is legal.
    """
    factory: Any = type(instance)
    for knob, rule in _rules(factory):
        value = getattr(instance, knob)
        if not rule.admits(value):
            legal = rule.describe(knob) + _read_percent(value)
            raise out_of_range(_OWNERS.get(factory, factory.__name__), knob, value, legal)


def _read_percent(value: object) -> str:
    """Spelling of a value that was given as a percentage."""
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*%\s*", value) if isinstance(value, str) else None
    return f"; write {float(match[1]) / 100:g} for {match[0].strip()}" if match else ""


def name_owner(factory: type, name: str) -> None:
    """Errors about this class's knobs begin with ``name``, which is what users write, instead of the class's own name."""
    _OWNERS[factory] = name


def check_value(owner: str, knob: str, value: object, annotation: object) -> None:
    """Checks one value that is not a field, such as an argument of a function: ``check_value("attach", "seed", seed, Steps)``.

    Raises:
        ConfigurationError: a value of another type or out of range; says what is legal.
    """
    rule = _rule(annotation)
    if rule is not None and not rule.admits(value):
        raise out_of_range(owner, knob, value, rule.describe(knob))


def describe_knobs(factory: type) -> dict[str, str]:
    """The legal values, in words, of each knob of a dataclass that :func:`check_knobs` checks."""
    return {knob: rule.describe(knob) for knob, rule in _rules(factory)}


_OWNERS: dict[type, str] = {}


@functools.lru_cache(maxsize=1024)
def _rules(factory: type) -> tuple[tuple[str, _Rule], ...]:
    """The rules of the fields that have one, in their order."""
    notes: dict[str, object] = {}
    for base in reversed(factory.__mro__):
        space = vars(sys.modules[base.__module__]) if base.__module__ in sys.modules else {}
        for name, note in inspect.get_annotations(base).items():
            try:
                notes[name] = eval(note, dict(space)) if isinstance(note, str) else note
            except (NameError, AttributeError, TypeError):  # a name that only type checkers see
                notes.pop(name, None)
    rules = ((field.name, _rule(notes.get(field.name))) for field in dataclasses.fields(factory) if field.init)
    return tuple((name, rule) for name, rule in rules if rule is not None)


def _rule(note: Any) -> _Rule | None:
    """The rule of an annotation; None if it is not checked here."""
    optional, limit = False, None
    if isinstance(note, types.UnionType) or typing.get_origin(note) is typing.Union:
        parts = [part for part in typing.get_args(note) if part is not type(None)]
        optional = len(parts) < len(typing.get_args(note))
        if len(parts) != 1:
            return None
        note = parts[0]
    if typing.get_origin(note) is Annotated:
        note, *extras = typing.get_args(note)
        limit = next((extra for extra in extras if hasattr(extra, "admits")), None)
    if typing.get_origin(note) is Literal:
        return _Rule(None, typing.get_args(note), None, optional)
    return _Rule(note, (), limit, optional) if note in (bool, int, float) else None


# ---- spelling -------------------------------------------------------------------------------------------------------
def as_call(instance: object) -> str:
    """A frozen dataclass as the call that makes it, without knobs at their defaults: ``TopK(ratio=0.02)``."""
    if isinstance(instance, type):
        return f"the class {instance.__name__}"
    if not dataclasses.is_dataclass(instance):
        return repr(instance)
    parts = []
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if field.default is dataclasses.MISSING:
            parts.append(as_call(value))
        elif value != field.default:
            parts.append(f"{field.name}={as_call(value)}")
    return f"{type(instance).__name__}({', '.join(parts)})"


def spell_value(value: object) -> str:
    """A knob's value as strings spell it."""
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
