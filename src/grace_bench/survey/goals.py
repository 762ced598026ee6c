"""Times when runs reach a quality: bf16's, which every method is measured by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from grace_bench.survey.evidence import LOSS, quality_of
from grace_bench.survey.row import SurveyRow

GOAL = "bf16"


def steps_to(row: SurveyRow, goal: float) -> float:
    """Steps until the first evaluation that reached the goal; infinite: none did."""
    sign = 1 if row.better == "higher" else -1
    for at, value in zip(row.at, row.values, strict=True):
        if value is not None and sign * (value - goal) >= 0:
            return at
    return math.inf


def goal_of(of: Mapping[str, Sequence[SurveyRow]]) -> float | None:
    """bf16's median, less what does not count as learning less; None: no bf16, or its quality is zero or no number, of
    which nothing is a share.
    """
    if GOAL not in of:
        return None
    plain = quality_of([row.final for row in of[GOAL]], higher=of[GOAL][0].better == "higher")
    if not math.isfinite(plain.median) or plain.median == 0:
        return None
    return plain.median - (1 if plain.higher else -1) * LOSS * abs(plain.median)
