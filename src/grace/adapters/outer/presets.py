"""Settings of an outer loop, and the published ones by name: ``"diloco:every=32"``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Annotated, Any

from grace.auto.settings import Auto
from grace.contract.knobs import Count, Positive, Range, Steps, check_knobs, name_owner
from grace.contract.method import Method
from grace.errors import ConfigurationError, nearest, unknown
from grace.registry import methods
from grace.registry.adaptive import Adaptive
from grace.registry.policy import Policy
from grace.registry.text import parse, strip_parentheses

OuterMethod = Policy | Method[Any] | Auto | Adaptive | str


@dataclass(frozen=True)
class OuterSettings:
    """Schedule of the exchanges, and settings of the outer optimizer, which applies the means.

    Args:
        every: H, inner steps from one exchange of a tensor to the next, >= 1.
        fragments: P, parts of the model that are exchanged in turn, ``every / fragments`` steps apart, >= 1.
        delay: tau, inner steps that an exchange may take, >= 0: it runs beside them, and is applied when they are made.
        alpha: share of its own parameters that a rank keeps when a mean is applied, 0 to 1.
        lr: of the outer optimizer, > 0.
        momentum: of the outer optimizer, 0 <= momentum < 1.
        nesterov: whether that momentum is Nesterov's.
        warmup_steps: steps at the start in which gradients are averaged, uncompressed, before each rank applies them, >= 0.

    Raises:
        ConfigurationError: a setting out of range, fragments that do not divide the steps, a delay that is too long.
    """

    every: Count
    fragments: Count = 1
    delay: Steps = 0
    alpha: Annotated[float, Range(0, 1)] = 0.0
    lr: Positive = 1.0
    momentum: Annotated[float, Range(0, below=1)] = 0.0
    nesterov: bool = True
    warmup_steps: Steps = 0

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.every % self.fragments:
            divisors = ", ".join(str(n) for n in range(1, min(self.every, 64) + 1) if self.every % n == 0)
            raise ConfigurationError(
                f"outer: every={self.every} is no multiple of fragments={self.fragments}, which are exchanged at equal "
                f"distances; legal for this every: fragments={divisors}"
            )
        if self.delay >= self.period:
            raise ConfigurationError(
                f"outer: delay={self.delay} is out of range; legal: delay < every / fragments = {self.period}, since one "
                "exchange ends before the next begins"
            )

    @property
    def period(self) -> int:
        """Inner steps from the exchange of one fragment to that of the next."""
        return self.every // self.fragments

    @property
    def schedule(self) -> str:
        """Steps at which exchanges start and end, in words."""
        return f"every={self.every}, fragments={self.fragments} and delay={self.delay}"


name_owner(OuterSettings, "outer")
_KNOBS = tuple(field.name for field in fields(OuterSettings))


@dataclass(frozen=True)
class Preset:
    """A published outer loop.

    method: compresses the pseudo-gradients. knobs: settings where they differ from those of :class:`OuterSettings`.
    asks: settings that have no published value, and must be given.
    """

    method: str
    knobs: Mapping[str, Any]
    asks: tuple[str, ...] = ()


_NESTEROV = {"lr": 0.7, "momentum": 0.9, "nesterov": True}
PRESETS: Mapping[str, Preset] = MappingProxyType({
    "local_sgd": Preset("none", {}, asks=("every",)),
    "post_local_sgd": Preset("none", {}, asks=("every", "warmup_steps")),
    "diloco": Preset("none", {"every": 500, **_NESTEROV}),
    "streaming_diloco": Preset(
        "e3m0", {"every": 100, "fragments": 4, "delay": 1, "alpha": 0.5, **_NESTEROV}
    ),
    "sparseloco": Preset("chunktopk", {"every": 30}),
    "muloco": Preset("qsgd:bits=2,bucket=64,memory=residual", {"every": 30, **_NESTEROV}),
})  # fmt: skip


def read_outer(
    method: OuterMethod | None, preset: str | None = None, **given: Any
) -> tuple[OuterSettings, OuterMethod]:
    """The settings and the method that a user's words make.

    Args:
        method: a method, or a preset with its knobs, ``"diloco:every=32,method=(qsgd:bits=4)"``; None: that of the preset.
        preset: the same, where ``method`` is a method; None: ``local_sgd``.
        given: settings that go before those of the preset; None: not given.

    Raises:
        UnknownNameError: an unknown preset or knob; names the nearest.
        ConfigurationError: a setting out of range, a preset's missing one, two presets.

    Example:
        >>> settings, method = read_outer("sparseloco:every=32,lr=0.4")
        >>> settings.every, settings.lr, method
        (32, 0.4, 'chunktopk')
    """
    if isinstance(method, str) and _head(method) in PRESETS:
        if preset is not None:
            raise ConfigurationError(f"outer: {method!r} and preset={preset!r} are both presets; give one")
        preset, method = method, None
    elif preset is None and isinstance(method, str) and _is_misspelt(_head(method)):
        raise unknown("preset", _head(method), PRESETS)
    name, knobs = parse(preset or "local_sgd")
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    known, told = PRESETS[name], knobs.pop("method", None)
    for key in knobs:
        if key not in _KNOBS:
            raise unknown(f"knob of {name}", key, (*_KNOBS, "method"))
    knobs.update({key: value for key, value in given.items() if value is not None})
    for key in known.asks:
        if key not in knobs:
            raise ConfigurationError(f"outer: {name} has no {key} of its own; give it: {name}:{key}=8, or {key}=8")
    if told is not None and method is not None:
        raise ConfigurationError(f"outer: {preset!r} has a method, and {method!r} is another; give one")
    if told is not None:
        method = strip_parentheses(str(told))
    return OuterSettings(**{**known.knobs, **knobs}), known.method if method is None else method


def _is_misspelt(name: str) -> bool:
    """True of what is no method, and nearly a preset."""
    return name not in methods() and bool(nearest(name, PRESETS, cutoff=0.8))


def _head(text: str) -> str:
    return text.strip().partition(":")[0]
