"""Rows of the document: what was timed, as numbers, beside the goals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grace.bench.codecs.clock import Timing
from grace.bench.codecs.goals import BITS, COPIES, MICROSECONDS, PER_INDEX, RATIO, SPEEDUP, Goal
from grace.bench.codecs.parts import Coded
from grace.bench.results import quartiles

Row = dict[str, Any]


def timed(operation: str, timing: Timing) -> Row:
    """The numbers of one case: ``ratio`` with its quartiles ``low`` and ``high``, and its median in microseconds."""
    ratio = quartiles(timing.ratios)
    return {
        "operation": operation,
        "ratio": _short(ratio["median"]),
        "low": _short(ratio["low"]),
        "high": _short(ratio["high"]),
        "microseconds": _short(1e6 * quartiles(timing.seconds)["median"]),
        "samples": [_short(value) for value in timing.ratios],
    }


def row(
    operation: str,
    method: str | None,
    size: int,
    threads: int,
    timing: Timing,
    goals: Sequence[Goal],
    *,
    kernels: str,
    cold: bool,
    payloads: int | None = None,
    coded: Coded | None = None,
    copies: Timing | None = None,
) -> Row:
    """One row, whose ``others`` are still to be filled with what it is compared with.

    ``payloads``: wires that were decoded; ``coded``: the list of indices that was coded; ``copies``: the same operation in
    multiples of memcpy.
    """
    out = timed(operation, timing)
    units = {RATIO: timing.ratios, MICROSECONDS: [1e6 * s for s in timing.seconds]}
    if coded is not None:
        units[PER_INDEX] = [1e9 * seconds / coded.count for seconds in timing.seconds]
        units[BITS] = [8 * coded.size / coded.count]
    if copies is not None:
        units[COPIES] = copies.ratios
    reached = [judged(goal, units[goal.unit], threads) for goal in goals if goal.kernels is None]
    first = next((found["goal"] for found in reached if found["unit"] == RATIO), None)
    return {
        "operation": operation, "method": method, "size": size, "threads": threads, "kernels": kernels,
        "cold": cold, "payloads": payloads, **out, "goal": first, "goals": reached, "others": [],
    }  # fmt: skip


def other(kernels: str, timing: Timing, against: Timing, goals: Sequence[Goal], threads: int, what: str = "") -> Row:
    """What a row is compared with: the same work on another backend. ``times`` is how often slower it is."""
    out = timed(what or "the same", timing)
    name = out.pop("operation")
    if len(timing.ratios) == len(against.ratios):
        times = quartiles([a / b for a, b in zip(timing.ratios, against.ratios, strict=True)])["median"]
    else:  # samples that were not taken side by side
        times = quartiles(timing.ratios)["median"] / quartiles(against.ratios)["median"]
    reached = [judged(goal, timing.ratios, threads) for goal in goals if goal.kernels == kernels]
    if kernels == "torch":
        faster = Goal("times faster than torch code", "", None, SPEEDUP)
        reached.append({**_target(faster, SPEEDUP), "unit": "times", "value": _short(times), "met": times >= SPEEDUP})
    return {"kernels": kernels, "what": name, **out, "times": _short(times), "goals": reached}


def judged(goal: Goal, values: Sequence[float], threads: int) -> Row:
    """A goal, and what was reached."""
    found = quartiles(values)
    limit = goal.limit(threads)
    return {
        **_target(goal, limit),
        "value": _short(found["median"]),
        "low": _short(found["low"]),
        "high": _short(found["high"]),
        "met": found["median"] <= limit,
    }


def _target(goal: Goal, limit: float) -> Row:
    return {"row": goal.row, "unit": goal.unit, "goal": _short(limit), "stretch": goal.stretch}


def _short(value: float) -> float:
    """Five digits are more than a clock is good for."""
    return float(f"{value:.5g}")
