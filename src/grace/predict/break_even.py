"""Up to which link speed one thing is faster than others."""

from __future__ import annotations

import math
from collections.abc import Callable

from grace.predict.links import LEAST, MOST, Link

_STEPS, _HALVINGS = 57, 12  # ten for each decade; then to a ten-thousandth


def break_even(own: Callable[[Link], float], others: Callable[[Link], float], latency: float = 0.0) -> float | None:
    """The fastest link, in bits per second, on which ``own`` takes less time than ``others``.

    Args:
        own: seconds of a step over a link.
        others: the same.
        latency: of the links, in seconds.

    Returns:
        Infinity if it is faster even on the fastest link, 400 Gbit/s; None if it is faster on none.
    """

    def gain(rate: float) -> float:
        there = Link(f"{rate:g}bit", rate, latency)
        return others(there) - own(there)

    rates: list[float] = [LEAST * math.pow(MOST / LEAST, k / (_STEPS - 1)) for k in range(_STEPS)]
    if gain(rates[-1]) > 0:
        return math.inf
    at = next((k for k in reversed(range(_STEPS - 1)) if gain(rates[k]) > 0), None)
    if at is None:
        return None
    low, high = rates[at], rates[at + 1]
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if gain(middle) > 0 else (low, middle)
    gained, lost = gain(low), gain(high)  # a straight line between them: the ends are near
    return low + (high - low) * gained / (gained - lost)


def speed_text(rate: float | None) -> str:
    """A break-even for people: ``2.4 Gbit/s``, ``any`` up to 400 Gbit/s, ``none``."""
    if rate is None:
        return "none"
    if rate >= MOST:
        return "any"
    size, unit = (rate / 1e9, "Gbit/s") if rate >= 1e9 else (rate / 1e6, "Mbit/s")
    return f"{size:.{0 if size >= 10 else 1}f} {unit}"
