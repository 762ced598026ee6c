"""Measures a plan beside goals and rivals."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from benchmarks.codecs import floors, naive, parts, rows
from benchmarks.codecs.goals import goals_of
from benchmarks.codecs.plan import PARTS, BoardPlan
from grace.compute import backends
from grace_bench.codecs.bench import Bench, Row, short
from grace_bench.codecs.buffers import Buffers
from grace_bench.codecs.clock import Case, CaseSamples
from grace_bench.codecs.plan import COLD

_PATIENCE = {
    None: 10.0,
    "native-base": 10.0,
    "torch": 5.0,
    "reference": 1.0,
}  # what has a goal, and its rivals, may be slow


class Board(Bench):
    """Times the methods of a plan, what they are compared with, and parts that are no method."""

    plan: BoardPlan

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._floors: dict[tuple[int, int], floors.Floors] = {}

    def run_job(self, name: str, buffers: Buffers, count: int) -> None:
        if name == PARTS:
            self._measure_parts(buffers, count)
        else:
            super().run_job(name, buffers, count)

    def time(
        self, name: str, cases: Sequence[Case], buffers: Buffers, count: int, payloads: int | None
    ) -> list[tuple[Case, Row]]:
        rivals: dict[Case, list[Case]] = {}
        for case in cases:
            compared = [] if payloads is None else self.rivals_of(case, name, buffers, payloads)
            if self.is_worth_it(name, case, buffers.n, count):
                rivals[case] = [other for other in compared if self.is_worth_it(name, other, buffers.n, count)]
        all_of_them = [*rivals, *(other for group in rivals.values() for other in group)]
        measured = self.clock.measure(buffers.add(), all_of_them, self.plan.samples, cold=buffers.n >= COLD)
        out = []
        for case, others in rivals.items():
            timings = {timed: self.note(name, timed, measured[timed], buffers.n, count) for timed in (case, *others)}
            if (timing := timings.pop(case)) is not None:
                told = {other: theirs for other, theirs in timings.items() if theirs is not None}
                out.append((case, self._row_of(case, name, buffers, count, timing, told)))
        return out

    def rivals_of(self, case: Case, name: str, buffers: Buffers, payloads: int) -> list[Case]:
        """Rivals of a method with a goal: reference kernels, baseline instruction set, naive torch code. Sets the case's
        patience.
        """
        if goals_of(case.operation, name, buffers.n):
            case.patience = _PATIENCE[None]
        goals = [goal for size in (buffers.n, COLD) for goal in goals_of(case.operation, name, size)]
        if not goals:
            return []
        chosen = ["reference"] if self.kernels != "reference" else []
        if any(goal.kernels in backends.available() and goal.kernels != self.kernels for goal in goals):
            chosen.append("native-base")
        out = [dataclasses.replace(case, kernels=backend) for backend in chosen]
        plain_torch = naive.case(case.operation, name, buffers, payloads)
        if plain_torch is not None:
            out.append(plain_torch)
        for other in out:
            other.patience = _PATIENCE[other.kernels]
        return out

    def _row_of(
        self, case: Case, name: str, buffers: Buffers, count: int, timing: CaseSamples, rivals: dict[Case, CaseSamples]
    ) -> Row:
        goals = goals_of(case.operation, name, buffers.n)
        here = self._here(buffers, count)
        row = rows.row(case.operation, timing, goals, count, here=here)
        row["others"] = [rows.other(other, theirs, timing, goals, count, here) for other, theirs in rivals.items()]
        return row

    def _here(self, buffers: Buffers, count: int) -> floors.Floors | None:
        """The floors, measured once for each size and number of threads; None for warm sizes, with goals in microseconds."""
        if buffers.n < COLD:
            return None
        if (buffers.n, count) not in self._floors:
            self._floors[buffers.n, count] = floors.measure(self.clock, buffers, count, self.plan.samples)
        return self._floors[buffers.n, count]

    def more(self) -> Row:
        told = [
            {
                "size": size,
                "threads": count,
                "ns_per_byte": short(1e9 * here.byte),
                "ns_per_cycle": short(1e9 * here.cycle),
            }
            for (size, count), here in self._floors.items()
        ]
        return {**super().more(), "floors": told}

    def _measure_parts(self, buffers: Buffers, count: int) -> None:
        if buffers.n < COLD:
            return
        coded = dict(parts.elias_fano(buffers))
        cases = [*parts.degenerate(buffers), *coded]
        for case in cases:
            case.patience = _PATIENCE[None]
        measured = self.clock.measure(buffers.add(), cases, self.plan.samples, cold=True)
        for case, timing in measured.items():
            self._add_part(case, timing, buffers.n, count, coded=coded.get(case), here=self._here(buffers, count))
        if buffers.n == max(self.plan.sizes):
            self._measure_powersgd(count)

    def _measure_powersgd(self, count: int) -> None:
        step, copy, size = parts.powersgd()
        step.patience = _PATIENCE[None]
        by_sum = self.clock.measure(Buffers(size).add(), [step], self.plan.samples, cold=True)[step]
        by_copy = self.clock.measure(copy, [step], self.plan.samples, cold=True)[step]
        self._add_part(step, by_sum if isinstance(by_copy, CaseSamples) else by_copy, size, count, copies=by_copy)

    def _add_part(
        self,
        case: Case,
        timing: CaseSamples | float,
        size: int,
        count: int,
        *,
        coded: parts.IndexList | None = None,
        copies: CaseSamples | float | None = None,
        here: floors.Floors | None = None,
    ) -> None:
        if not isinstance(timing, CaseSamples):
            return self.leave_slow(case, None, size, count, timing)
        assert not isinstance(copies, float)
        goals = goals_of(case.operation, None, size)
        row = rows.row(case.operation, timing, goals, count, coded=coded, copies=copies, here=here)
        self.lists["rows"].append(self.place(None, size, count) | row)
        return None
