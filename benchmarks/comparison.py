"""Methods beside each other on each task: at equal epochs, at equal bytes, and by the time to bf16's quality."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeAlias

from msgspec import Struct

from grace_bench.survey.evidence import Quality, Task, quality_of, sort_rows
from grace_bench.survey.goals import goal_of, steps_to
from grace_bench.survey.row import SurveyRow
from grace_bench.survey.steps import LINKS, StepTable

SHARE = 0.2  # of the bytes of an fp32 run: what every method may send where bytes are equal


class Compared(Struct, frozen=True):
    """A method on a task.

    Attributes:
        epochs: its quality after the whole run.
        bytes: its quality when a worker had sent a fifth of what fp32 sends in the whole run; after the run, if it sends less.
        times: seconds to bf16's quality over each link, where a step was measured; infinite: not reached.
        steps: seconds of a step over each link.
        sent: bytes, as a share of those of fp32.
    """

    epochs: Quality
    bytes: Quality
    times: dict[str, Quality]
    steps: dict[str, float]

    @property
    def sent(self) -> float:
        """See above."""
        return self.epochs.sent


Comparison: TypeAlias = dict[Task, dict[str, Compared]]


def compare(rows: Iterable[SurveyRow], steps: StepTable | None = None) -> Comparison:
    """All methods on embedded data on the processor, by task and method."""
    comparison: Comparison = {}
    for task, of in sort_rows(rows).items():
        goal = goal_of(of)
        comparison[task] = {name: _compare(runs, goal, steps) for name, runs in of.items()}
    return comparison


def quality_after(row: SurveyRow, budget: float) -> float | None:
    """The metric when a worker had sent so many bytes, on a line between two evaluations; at the end if it never sent them.
    None: not finite.
    """
    for (before, value), (after, end) in pairwise(zip(row.sent, row.values, strict=True)):
        if before <= budget < after:
            if value is None or end is None:
                return None
            return value + (end - value) * (budget - before) / (after - before)
    return row.final


def _compare(runs: Sequence[SurveyRow], goal: float | None, steps: StepTable | None) -> Compared:
    higher = runs[0].better == "higher"
    ended = [row.sent[-1] / row.fp32_bytes for row in runs if row.final is not None and row.workers > 1]
    epochs = quality_of([row.final for row in runs], higher=higher, sent=ended)
    held = quality_of([quality_after(row, SHARE * row.fp32_bytes) for row in runs], higher=higher)
    each = {over: steps.seconds(runs[0], over) for over in LINKS} if steps is not None else {}
    known = {over: seconds for over, seconds in each.items() if seconds is not None}
    times = {}
    if goal is not None:
        waits = [steps_to(row, goal) for row in runs]
        for over, seconds in known.items():
            spent = [wait * seconds if math.isfinite(wait) else None for wait in waits]
            times[over] = quality_of(spent, higher=False)
    return Compared(epochs, held, times, known)
