"""A user's settings of ``auto``: ``"auto"``, ``"auto:goal=time"``, or an :class:`Auto`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

from grace.auto.classes import GOALS, LOOSE, QUALITIES, Goal, Quality
from grace.contract.knobs import Positive, Range, check_knobs, name_owner
from grace.errors import ConfigurationError, nearest, one_of, out_of_range
from grace.registry import method as make_method
from grace.registry import split_commas
from grace.registry.adaptive import Adaptive
from grace.registry.text import AUTO, strip_parentheses

NAME = AUTO
_QUALITIES = "'exact', 'safe', or the share of uncompressed training's quality that may be lost, 0 < quality <= 1"


@dataclass(frozen=True)
class Auto:
    """Chooses a method for each bucket while the model trains, by what is measured here: grace.attach(model, "auto").

    Args:
        goal: "steps": after as many steps as without it, not worse; "time": bf16's quality soonest, by the time of a step
            times the steps that the survey saw a method take to bf16's quality. See :mod:`grace.auto.classes`.
        quality: under the goal "steps", what it may cost: "exact" permits fp32 and bf16; "safe" what the survey never saw to
            end worse than uncompressed training by more than 2 %; a number the same with that share, such as 0.05 for 5 %.
        error: in place of a class, the largest ``|x - C(x)| / |x|`` of any tensor, > 0, of methods without a memory; None:
            the class decides.
        methods: only these, and fp32 and bf16, each over scatter-reduce as well where that sends less; they need not be in
            the class. Empty: all of the class.
        keep: pairs of a shell pattern and the method that tensors of such names get whatever else is chosen.
        share: of the run's time that measuring and trying may take, 0 to 0.5; 0: it measures once, and never tries.
        margin: by how much a challenger must be faster, 0 to 0.5.
        seed: of the order of trials; None: that of the exchange.

    Raises:
        ConfigurationError: a knob out of range, a method that does not exist, two of ``quality``, ``error`` and
            the goal "time" together.

    Example:
        >>> Auto.read("auto:quality=0.05,methods=(topk;qsgd:bits=4)").methods
        ('topk', 'qsgd:bits=4')
        >>> str(Auto(error=0.1))
        'auto:error=0.1'
    """

    goal: Goal = "steps"
    quality: Quality = "safe"
    error: Positive | None = None
    methods: tuple[str, ...] = ()
    keep: tuple[tuple[str, str], ...] = ()
    share: Annotated[float, Range(0.0, 0.5)] = 0.01
    margin: Annotated[float, Range(0.0, 0.5)] = 0.02
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.goal not in GOALS:
            raise out_of_range("auto", "goal", self.goal, ", ".join(map(repr, GOALS)))
        self._check_quality()
        if self.error is not None and self.quality != "safe":
            raise ConfigurationError("auto: error= takes the place of quality=; give one of them")
        if self.goal == "time" and (self.error is not None or self.quality != "safe"):
            given = "error" if self.error is not None else "quality"
            raise ConfigurationError(
                f"auto: goal=time weighs steps against their time, and {given}= bounds what is lost after as many steps; give "
                "one of them"
            )
        for name in ("methods", "keep"):
            value = getattr(self, name)
            if isinstance(value, str) or not isinstance(value, Sequence):
                raise ConfigurationError(f"auto: {name}={value!r}; legal: a list, or in a string (a;b)")
            object.__setattr__(self, name, tuple(tuple(item) if name == "keep" else item for item in value))
        for pair in self.keep:
            if len(pair) != 2 or not all(isinstance(part, str) for part in pair):
                raise ConfigurationError(
                    f"auto: keep has {pair!r}; legal: pairs of a pattern and a method, embed*=bf16"
                )
        for spec in (*self.methods, *(text for _, text in self.keep)):
            make_method(spec)
        check_knobs(self)

    def _check_quality(self) -> None:
        quality: object = self.quality  # whatever a user gave
        if isinstance(quality, str):
            if quality == "fast":
                raise ConfigurationError(
                    f"auto: quality='fast' is a number now: write quality={LOOSE} for methods that ended up to {LOOSE:.0%} "
                    "worse after as many steps, or goal=time for bf16's quality soonest"
                )
            if quality not in QUALITIES:
                raise out_of_range("auto", "quality", quality, _QUALITIES)
        elif isinstance(quality, bool) or not isinstance(quality, int | float) or not 0 < quality <= 1:
            raise out_of_range("auto", "quality", quality, _QUALITIES)

    @classmethod
    def read(cls, text: str) -> Auto:
        """The inverse of ``str``.

        Raises:
            ConfigurationError: it does not parse.
        """
        name, _, tail = text.strip().partition(":")
        if name != NAME:
            raise ConfigurationError(f"{text!r} does not begin with {NAME}")
        legal = [field.name for field in fields(cls)]
        knobs: dict[str, Any] = {}
        for part in split_commas(tail) if tail else []:
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or not value:
                raise ConfigurationError(
                    f"{text!r}: expected knob=value after ':', got {part!r}; for example auto:goal=time"
                )
            if key not in legal:
                near = nearest(key, legal)
                hint = f"; nearest: {one_of(near)}" if near else ""
                raise ConfigurationError(f"auto has no knob {key!r}{hint}; legal: {', '.join(legal)}")
            if key in knobs:
                raise ConfigurationError(f"{text!r}: knob {key!r} is given twice")
            knobs[key] = _read(key, value)
        return cls(**knobs)

    def __str__(self) -> str:
        parts = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value == field.default:
                continue
            if field.name == "methods":
                value = f"({';'.join(value)})"
            elif field.name == "keep":
                value = f"({';'.join(f'{pattern}={text}' for pattern, text in value)})"
            parts.append(f"{field.name}={value}")
        return f"{NAME}:{','.join(parts)}".rstrip(":")


name_owner(Auto, "auto")


def _read(key: str, value: str) -> Any:
    if key in ("methods", "keep"):
        inside = strip_parentheses(value)
        if inside == value:
            raise ConfigurationError(f"auto: {key}={value}; legal: several in parentheses, {key}=(a;b)")
        parts = [part.strip() for part in inside.split(";") if part.strip()]
        if key == "methods":
            return tuple(parts)
        pairs = [part.partition("=") for part in parts]
        return tuple((pattern.strip(), text.strip()) for pattern, _, text in pairs)
    if key == "goal" or (key == "quality" and value[:1].isalpha()):
        return value
    if value.lower() == "none":
        return None
    try:
        return int(value) if key == "seed" else float(value)
    except ValueError as error:
        raise ConfigurationError(f"auto: {key}={value}; legal: a number") from error


def wanted(method: object) -> Auto | Adaptive | None:
    """The settings of ``auto``, or of :meth:`grace.Policy.adaptive`, that a user gave; None: it is a method or a policy.

    Raises:
        ConfigurationError: it begins as ``auto`` does, and does not parse.
    """
    if isinstance(method, Auto | Adaptive):
        return method
    if isinstance(method, str) and method.strip().partition(":")[0] == NAME:
        return Auto.read(method)
    return None
