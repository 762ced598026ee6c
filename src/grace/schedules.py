"""Knobs that follow the step or the epoch, and methods that start later.

In strings: ``topk:ratio=warmup(0.25->0.001, 4 epochs)``, ``qsgd:levels=steps(0:127, 1000:7)``, ``topk:start=1000``.
"""

from __future__ import annotations

import bisect
import functools
import math
import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from grace.collectives import AllReduce, Exchange, Traffic, cost
from grace.errors import CompositionError, ConfigurationError
from grace.facts import Facts
from grace.finite import fill_unless_
from grace.kernels.finite import all_finite
from grace.knobs import Steps, as_call, check_knobs, spell_value
from grace.method import Exchanged, Method
from grace.peer import Peer

_RAMPS = ("warmup", "linear", "exponential")
_STAIRS = {"steps": "steps", "epochs": "epochs"}
_CALL = re.compile(r"(warmup|linear|exponential|steps|epochs)\((.*)\)")
_RAMP = re.compile(r"\s*(\S+?)\s*->\s*(\S+?)\s*,\s*(\S+)\s+(step|epoch)s?\s*")
_FEW = 64  # up to so many whole values are all tried at construction
_SAMPLES = ((256, 256), (1000,))  # shapes at which states are compared at construction
_HINT = (
    "legal: warmup(a->b, N epochs), linear(a->b, N steps), exponential(a->b, N steps), steps(0:a, 100:b), epochs(...)"
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A number that follows the step or the epoch.

    Args:
        kind: "linear": from the first value to the last in a straight line; "exponential": by a constant factor per
            step; "warmup": the same, but in stairs of one unit each (one epoch, as DGC does it); "steps", "epochs": a
            constant from each point to the next.
        points: (when, value) pairs in ascending order, beginning at 0: two for a ramp, one or more for stairs.
        unit: what ``when`` counts: "steps" or "epochs".

    After the last point the last value holds. If all values are whole, what lies between is rounded to whole numbers.

    Example:
        >>> schedule = Schedule.parse("warmup(0.25->0.001, 4 epochs)")
        >>> [round(schedule.at(step, steps_per_epoch=10), 4) for step in (0, 9, 10, 20, 30, 40, 1000)]
        [0.25, 0.25, 0.0629, 0.0158, 0.004, 0.001, 0.001]
        >>> str(schedule)
        'warmup(0.25->0.001, 4 epochs)'
    """

    kind: str
    points: tuple[tuple[float, float], ...]
    unit: str

    def __post_init__(self) -> None:
        whens, values = [when for when, _ in self.points], [value for _, value in self.points]
        ramp = self.kind in _RAMPS
        if not (ramp or _STAIRS.get(self.kind) == self.unit) or self.unit not in _STAIRS:
            raise ConfigurationError(f"schedule {self.kind!r} in {self.unit!r} is unknown; {_HINT}")
        if not all(isinstance(number, int | float) and math.isfinite(number) for number in (*whens, *values)):
            raise ConfigurationError(f"schedule {self}: all numbers must be finite")
        if not whens or whens[0] != 0 or sorted(set(whens)) != whens:
            raise ConfigurationError(f"schedule {self}: times must begin at 0 and ascend, got {whens}")
        if ramp and len(whens) != 2:
            raise ConfigurationError(f"schedule {self}: a ramp goes from one value to another; {_HINT}")
        if self.kind in ("exponential", "warmup") and min(values) <= 0:
            raise ConfigurationError(f"schedule {self}: {self.kind} needs values above 0; use linear")

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """The inverse of ``str``.

        Raises:
            ConfigurationError: it cannot be read; says what is legal.
        """
        call = _CALL.fullmatch(text.strip())
        if call is None:
            raise ConfigurationError(f"schedule {text!r} cannot be read; {_HINT}")
        kind, inside = call.groups()
        try:
            if kind in _STAIRS:
                pairs = [pair.split(":") for pair in inside.split(",")]
                return cls(kind, tuple((_number(when), _number(value)) for when, value in pairs), kind)
            ramp = _RAMP.fullmatch(inside)
            if ramp is not None:
                first, last, length, unit = ramp.groups()
                return cls(kind, ((0, _number(first)), (_number(length), _number(last))), f"{unit}s")
        except ConfigurationError:
            raise
        except ValueError:
            pass
        raise ConfigurationError(f"schedule {text!r} cannot be read; {_HINT}")

    @staticmethod
    def is_one(text: object) -> bool:
        """Whether this is a schedule, or a string that means to be one."""
        return isinstance(text, Schedule) or (isinstance(text, str) and _CALL.fullmatch(text.strip()) is not None)

    @classmethod
    def of(cls, value: Schedule | str) -> Schedule:
        """A schedule as it is, or parsed."""
        return value if isinstance(value, Schedule) else cls.parse(value)

    def __str__(self) -> str:
        if self.kind in _STAIRS:
            return f"{self.kind}({', '.join(f'{when}:{value}' for when, value in self.points)})"
        if len(self.points) != 2:
            return f"{self.kind}{self.points}"
        (_, first), (length, last) = self.points
        return f"{self.kind}({first}->{last}, {length} {self.unit})"

    @property
    def whole(self) -> bool:
        """Whether all values are whole numbers."""
        return all(isinstance(value, int) for _, value in self.points)

    def at(self, step: int, steps_per_epoch: int | None = None) -> float:
        """The value at a global step.

        Raises:
            ConfigurationError: it counts epochs, and nobody says how long one is.
        """
        if self.unit == "epochs" and steps_per_epoch is None:
            raise ConfigurationError(f"schedule {self} counts epochs; say how long one is: steps_per_epoch=...")
        time = step / (steps_per_epoch or 1) if self.unit == "epochs" else step
        if self.kind in _STAIRS:
            return self.points[bisect.bisect_right(self.points, time, key=lambda point: point[0]) - 1][1]
        (_, first), (length, last) = self.points
        share = (math.floor(time) if self.kind == "warmup" else time) / length
        if share >= 1:
            return last
        if self.kind == "linear":
            value = first + (last - first) * share
        else:
            value = float(
                f"{first * (last / first) ** share:.12g}"
            )  # the last digits differ between libraries of mathematics
        value = min(max(value, min(first, last)), max(first, last))
        return round(value) if self.whole else value

    def values(self) -> list[float]:
        """Values that stand for all: the points', and what lies between, all of it if it is whole and not much."""
        values = [value for _, value in self.points]
        if self.kind in _STAIRS:
            return values
        low, high = min(values), max(values)
        if self.whole:
            if high - low <= _FEW:
                return [values[0], values[1], *range(int(low) + 1, int(high))]
            return [*values, round((low + high) / 2)]
        return [*values, low + 0.618 * (high - low)]  # not a whole number by chance, where a knob must be one


def _number(text: str) -> float:
    """A whole number as an int, another as a float."""
    try:
        return int(text)
    except ValueError:
        return float(text)


class Template(Protocol):
    """What makes a method of knobs: a template of the registry. Hashable."""

    @property
    def name(self) -> str:
        """The registered name."""

    def build(self, knobs: dict[str, Any]) -> Method[Any]:
        """The method with these knobs."""


@functools.lru_cache(maxsize=1024)
def _built(template: Template, knobs: tuple[tuple[str, Hashable], ...]) -> Method[Any]:
    return template.build(dict(knobs))


@dataclass(frozen=True, slots=True, repr=False)
class Scheduled(Method[Any]):
    """A registered method of which some knobs follow the step or epoch. Made by ``method("topk:ratio=linear(...)")``.

    Every value is tried at construction. The state goes on while knobs change, so a knob that changes its shape (such as
    the rank of PowerSGD) is refused: use a policy with rules for steps, which carries over what is owed.

    Args:
        template: the recipe.
        knobs: all knobs that are given, pairs (name, value or :class:`Schedule`).
    """

    template: Any
    knobs: tuple[tuple[str, Any], ...]

    def __post_init__(self) -> None:
        for shape in _SAMPLES:
            self._states(torch.zeros(shape))

    def __repr__(self) -> str:
        return f"method({str(self)!r})"

    def __str__(self) -> str:
        return f"{self.template.name}:" + ",".join(f"{knob}={spell_value(value)}" for knob, value in self.knobs)

    def at(self, step: int, steps_per_epoch: int | None = None) -> Method[Any]:
        """The method of one step."""
        return self._with(lambda schedule: schedule.at(step, steps_per_epoch))

    def _with(self, choose: Callable[[Schedule], float]) -> Method[Any]:
        values = ((knob, choose(value) if isinstance(value, Schedule) else value) for knob, value in self.knobs)
        return _built(self.template, tuple(values))

    def _variants(self) -> list[Method[Any]]:
        """The methods at every value of each schedule, the others being at their first."""
        first = self._with(lambda schedule: schedule.points[0][1])
        out = [first]
        for name, schedule in self.knobs:
            if isinstance(schedule, Schedule):
                for value in schedule.values()[1:]:
                    fixed = ((k, v.points[0][1] if isinstance(v, Schedule) else v) for k, v in self.knobs)
                    out.append(_built(self.template, tuple((k, value if k == name else v) for k, v in fixed)))
        return out

    def _states(self, like: Tensor) -> Any:
        """The first state, if all values agree on its shape."""
        variants = self._variants()
        states = [variant.init(like) for variant in (variants[0], *dict.fromkeys(variants[1:]))]
        if any(_shape(state) != _shape(states[0]) for state in states[1:]):
            raise CompositionError(
                f"{self}: a schedule cannot change the shape of the state; use a policy with rules for steps: "
                "grace.Rule('*', ..., until_step=1000), grace.Rule('*', ..., from_step=1000)"
            )
        return states[0]

    @property
    def needs_shape(self) -> bool:
        return any(variant.needs_shape for variant in self._variants())

    @property
    def needs_epochs(self) -> bool:
        return any(isinstance(value, Schedule) and value.unit == "epochs" for _, value in self.knobs)

    def init(self, like: Tensor) -> Any:
        return self._states(like)

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        return (yield from self.at(peer.step, peer.steps_per_epoch).exchange(x, state, peer))

    def facts(self, like: Tensor) -> Facts:
        """What holds at every value."""
        every = [variant.facts(like) for variant in self._variants()]
        return Facts(
            unbiased=all(one.unbiased for one in every),
            contraction=_worst(min, [one.contraction for one in every]),
            variance=_worst(max, [one.variance for one in every]),
            deterministic=all(one.deterministic for one in every),
            payload=every[0].payload if len({one.payload for one in every}) == 1 else None,
        )

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        return self.at(peer.step, peer.steps_per_epoch).traffic(like, peer)

    def owed(self, state: Any) -> Tensor | None:
        return self._with(lambda schedule: schedule.points[0][1]).owed(state)

    def with_memory(self) -> Method[Any]:
        raise CompositionError(f"{self} is complete as it is; give it its memory as a knob: memory=residual")


def _worst(choose: Callable[[list[float]], float], bounds: list[float | None]) -> float | None:
    known = [bound for bound in bounds if bound is not None]
    return choose(known) if len(known) == len(bounds) else None


def _shape(state: Any) -> Any:
    """What must not change in a state: its structure, and the shapes and types of its tensors."""
    if isinstance(state, Tensor):
        return (tuple(state.shape), state.dtype)
    return tuple(_shape(part) for part in state) if isinstance(state, tuple) else type(state)


@dataclass(frozen=True, slots=True)
class Delayed(Method[Any]):
    """Steps before ``start`` go uncompressed, as under ``none``; then the method begins. In strings: ``topk:start=1000``.

    Args:
        method: any method.
        start: the first step that the method takes, >= 0.

    Example:
        >>> method("topk:ratio=0.01,memory=none,start=100")
        Delayed(method=Allgather(compressor=TopK(ratio=0.01, index='auto', values='float32')), start=100)
    """

    method: Method[Any]
    start: Steps = 0

    def __post_init__(self) -> None:
        if not isinstance(self.method, Method):
            raise CompositionError(f"Delayed wraps a Method, got {as_call(self.method)}")
        check_knobs(self)

    @property
    def needs_shape(self) -> bool:
        return self.method.needs_shape

    @property
    def needs_epochs(self) -> bool:
        return self.method.needs_epochs

    def init(self, like: Tensor) -> Any:
        return self.method.init(like)

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        if peer.step >= self.start:
            return (yield from self.method.exchange(x, state, peer))
        mean = yield AllReduce(x, "mean", donate=True)
        finite = all_finite(mean)
        if finite is False:
            return Exchanged.poisoned(mean, state)
        fill_unless_(finite, mean, math.nan)
        return Exchanged(mean, torch.zeros_like(mean) if peer.lent.keep_rest else None, state, finite)

    def facts(self, like: Tensor) -> Facts:
        return self.method.facts(like)

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        if peer.step >= self.start:
            return self.method.traffic(like, peer)
        return cost(AllReduce(like), peer.rank, peer.world)

    def owed(self, state: Any) -> Tensor | None:
        return self.method.owed(state)
