"""Learning rates as functions of the global step. Marks are fractions of the run, so that a shorter run has them all."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def piecewise(step: int, steps: int, base: float, marks: Sequence[float], factor: float = 0.1) -> float:
    """``base``, times ``factor`` from each mark on.

    >>> [round(piecewise(step, 100, 0.1, (0.5, 0.75)), 6) for step in (0, 49, 50, 75)]
    [0.1, 0.1, 0.01, 0.001]
    """
    return base * factor ** sum(step >= int(mark * steps) for mark in marks)


def interpolate(step: int, steps: int, base: float, marks: Sequence[float], values: Sequence[float]) -> float:
    """``base`` times what lies between the values at the marks.

    >>> [round(interpolate(step, 100, 0.4, (0, 0.2, 1), (0, 1, 0)), 6) for step in (0, 10, 20, 60)]
    [0.0, 0.2, 0.4, 0.2]
    """
    return base * float(np.interp(step, [mark * steps for mark in marks], values))


def warm_cosine(step: int, steps: int, base: float, warm: int, floor: float = 0.0) -> float:
    """Rises to ``base`` over ``warm`` steps and falls to ``floor`` times it on a cosine.

    >>> [round(warm_cosine(step, 110, 1.0, 10, 0.1), 6) for step in (0, 9, 60, 110)]
    [0.1, 1.0, 0.55, 0.1]
    """
    if step < warm:
        return base * (step + 1) / warm
    done = min(1.0, (step - warm) / max(1, steps - warm))
    return base * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done)))
