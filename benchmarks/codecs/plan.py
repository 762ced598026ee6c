"""The plan of measurements: the methods with a goal everywhere, all others where that takes minutes and not hours."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from benchmarks.codecs.goals import GOALS
from grace.cli.options import parse_numbers
from grace.compute import resources
from grace.contract.knobs import name_owner
from grace.registry import methods, split_methods
from grace_bench.codecs.plan import COLD, YARDSTICKS, CodecPlan, by_family, parse_sizes, sort_numbers

LARGE = 4_000_000  # from this size on only methods with a goal are measured, unless methods were named
PARTS = "parts"  # a job that is no method


@dataclass(frozen=True, slots=True)
class BoardPlan(CodecPlan):
    """The plan of measurements.

    Args:
        named: whether somebody asked for just these methods; then all are measured at all sizes.
    """

    named: bool = False

    def covers(self, name: str, size: int, threads: int) -> bool:
        """True if this method is measured at this size, with so many threads. Methods without a goal are only for smaller
        tensors and the fewest threads, unless they were named: so that a run takes minutes.
        """
        modest = size < LARGE and threads == self.threads[0]
        return self.named or modest or _has_goal(name)

    def jobs(self, size: int, threads: int) -> list[tuple[str, float]]:
        often, millions = self.samples / 9, size / 1e6
        jobs = CodecPlan.jobs(self, size, threads)  # with slots, a dataclass is another class than the one of this body
        parts = (PARTS, often * (0.8 + 0.15 * millions) if size >= COLD else 0.0)
        rivalry = min(1.5 * millions, 2.5 * self.budget + 0.2 * millions) + often * (0.2 + 0.04 * millions)
        later = [
            (name, rivalry if _has_goal(name) else seconds)  # the most of it for what it is compared with
            for name, seconds in jobs
            if name != YARDSTICKS and self.covers(name, size, threads)
        ]
        return [jobs[0], parts, *later]


name_owner(BoardPlan, "codecs")


def board_plan(
    chosen: str | None = None,
    sizes: str | None = None,
    threads: str | None = None,
    samples: int | None = None,
    *,
    limit: float | None = None,
    budget: float = 0.5,
    quick: bool = False,
) -> BoardPlan:
    """From the words of the command line; what is None takes its default, which is smaller with ``quick``.

    Args:
        chosen: methods with commas between; "goals" stands for those that have a goal, "all" for these and all registered.
        sizes: such as "4K,6.5M".
        threads: such as "1,2".
        samples: of each case.
        limit: seconds of one run.
        budget: seconds of all samples of a case.
        quick: whether defaults are small.

    Raises:
        ConfigurationError: a method, size or number that is not legal.
    """
    words = split_methods(chosen or ("goals" if quick else "all"))
    goals = [goal.method for goal in GOALS if goal.method is not None]
    groups = {"goals": goals, "all": [*goals, *methods()]}
    counts = parse_numbers(threads, "--threads") if threads else [1] if quick or resources.cores() == 1 else [1, 2]
    return BoardPlan(
        methods=by_family([name for word in words for name in groups.get(word, [word])]),
        sizes=sort_numbers(parse_sizes(sizes or ("4K,1M" if quick else "4K,256K,1M,6.5M,25M"))),
        threads=sort_numbers(counts),
        samples=samples if samples is not None else 3 if quick else 9,
        limit=limit if limit is not None else 0.5 if quick else 1.0,
        budget=budget,
        named=chosen is not None and "all" not in words,
    )


@functools.cache
def _has_goal(name: str) -> bool:
    return any(goal.is_about(name) for goal in GOALS)
