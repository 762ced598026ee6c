"""Rows of the document: what was timed, as numbers, beside the goals."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.codecs.floors import Floors
from benchmarks.codecs.goals import BITS, COPIES, MICROSECONDS, PER_INDEX, RATIO, SPEEDUP, Goal
from benchmarks.codecs.parts import IndexList
from grace_bench.codecs.bench import Row, short, summarize
from grace_bench.codecs.clock import Case, CaseSamples
from grace_bench.runs.results import quartiles


def row(
    operation: str,
    timing: CaseSamples,
    goals: Sequence[Goal],
    threads: int,
    *,
    coded: IndexList | None = None,
    copies: CaseSamples | None = None,
    here: Floors | None = None,
) -> Row:
    """A row, whose ``others`` are still to be filled with what it is compared with.

    ``here``: the floors of this machine, from which goals in multiples of ``y.add_(x)`` follow.
    ``coded``: the list of indices that was coded; ``copies``: the same operation in multiples of memcpy.
    """
    units = {RATIO: timing.ratios, MICROSECONDS: [1e6 * s for s in timing.seconds]}
    if coded is not None:
        units[PER_INDEX] = [1e9 * seconds / coded.count for seconds in timing.seconds]
        units[BITS] = [8 * coded.size / coded.count]
    if copies is not None:
        units[COPIES] = copies.ratios
    reached = [
        judge_goal(goal, units[goal.unit], threads, _limit(goal, here)) for goal in goals if goal.kernels is None
    ]
    first = next((goal["goal"] for goal in reached if goal["unit"] == RATIO), None)
    return {**summarize(operation, timing), "goal": first, "goals": reached, "others": []}


def other(
    case: Case,
    timing: CaseSamples,
    against: CaseSamples,
    goals: Sequence[Goal],
    threads: int,
    here: Floors | None = None,
) -> Row:
    """The other side of a comparison: the same work on another backend, ``times`` times slower."""
    out = summarize(case.what or "the same", timing)
    name = out.pop("operation")
    if len(timing.ratios) == len(against.ratios):
        times = quartiles([a / b for a, b in zip(timing.ratios, against.ratios, strict=True)])["median"]
    else:  # samples that were not taken side by side
        times = quartiles(timing.ratios)["median"] / quartiles(against.ratios)["median"]
    reached = [
        judge_goal(goal, timing.ratios, threads, _limit(goal, here)) for goal in goals if goal.kernels == case.kernels
    ]
    if case.kernels == "torch":
        faster = Goal("times faster than torch code", "", None, SPEEDUP)
        reached.append({**_target(faster, SPEEDUP), "unit": "times", "value": short(times), "met": times >= SPEEDUP})
    return {"kernels": case.kernels, "what": name, **out, "times": short(times), "goals": reached}


def _limit(goal: Goal, here: Floors | None) -> tuple[float, str] | None:
    """The goal on this machine, and the floor that it is; None of goals in other units."""
    return here.limit(goal) if here is not None and goal.unit == RATIO else None


def judge_goal(goal: Goal, values: Sequence[float], threads: int, at_least: tuple[float, str] | None = None) -> Row:
    """A goal, and what was reached. ``at_least``: what it is on this machine, and which floor that is."""
    spread = quartiles(values)
    limit, binds = at_least or (goal.limit(threads), None)
    return {
        **_target(goal, limit),
        "binds": binds,
        "value": short(spread["median"]),
        "low": short(spread["low"]),
        "high": short(spread["high"]),
        "met": spread["median"] <= limit,
    }


def _target(goal: Goal, limit: float) -> Row:
    return {"row": goal.row, "unit": goal.unit, "goal": short(limit), "stretch": goal.stretch}
