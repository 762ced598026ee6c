"""Numbers that follow the step or the epoch."""

from __future__ import annotations

import bisect
import math
import re
from dataclasses import dataclass

from grace.errors import ConfigurationError

_RAMPS = ("warmup", "linear", "exponential")
_STAIRS = {"steps": "steps", "epochs": "epochs"}
_CALL = re.compile(r"(warmup|linear|exponential|steps|epochs)\((.*)\)")
_RAMP = re.compile(r"\s*(\S+?)\s*->\s*(\S+?)\s*,\s*(\S+)\s+(step|epoch)s?\s*")
_FEW = 64  # where a schedule has at most this many whole values, all are tried at construction
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

    After the last point the last value holds. If all values are whole, those between them are rounded to whole numbers.

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
        """True if this is a schedule, or a string that is meant as one."""
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
        """True if all values are whole numbers."""
        return all(isinstance(value, int) for _, value in self.points)

    def at(self, step: int, steps_per_epoch: int | None = None) -> float:
        """The value at a global step.

        Raises:
            ConfigurationError: it counts epochs, and ``steps_per_epoch`` is not given.
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

    def ended(self, step: int, steps_per_epoch: int | None = None) -> bool:
        """True if the value has reached its last one at this step."""
        time = step / (steps_per_epoch or 1) if self.unit == "epochs" else step
        return time >= self.points[-1][0]

    def values(self) -> list[float]:
        """Values that represent all: those of the points, and between them every value if they are whole and few, else one."""
        values = [value for _, value in self.points]
        if self.kind in _STAIRS:
            return values
        low, high = min(values), max(values)
        if self.whole:
            if high - low <= _FEW:
                return [values[0], values[1], *range(int(low) + 1, int(high))]
            return [*values, round((low + high) / 2)]
        return [*values, low + 0.618 * (high - low)]  # not whole by chance: knobs that must be whole refuse it


def _number(text: str) -> float:
    """A whole number as an int, another as a float."""
    try:
        return int(text)
    except ValueError:
        return float(text)
