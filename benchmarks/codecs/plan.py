"""What is measured: which methods, at which sizes, with how many threads, how often."""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass

from grace.bench.codecs.goals import GOALS, canonical
from grace.errors import ConfigurationError, out_of_range
from grace.registry import methods, recipe, split_methods

COLD = 1_000_000  # from this size on caches are emptied before every sample; smaller tensors are measured warm
LARGE = 4_000_000  # from this size on only methods with a goal are measured, unless methods were named
YARDSTICKS, PARTS = "yardsticks", "parts"  # jobs that are no method
_UNITS = {"": 1, "K": 1024, "M": 1_000_000}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KM]?)")
_MOST = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured.

    Args:
        methods: in their canonical form, each once.
        named: whether somebody asked for just these; then all are measured at all sizes.
        sizes: numbers in a tensor, ascending, each 1 to 1,000,000,000.
        threads: ascending, each >= 1.
        samples: of each case, 3 to 1,000.
        limit: a case of which one run takes more seconds than this is left out, > 0.
        budget: seconds that the samples of a case may take together, > 0; what would take longer is sampled less often.
    """

    methods: tuple[str, ...]
    named: bool
    sizes: tuple[int, ...]
    threads: tuple[int, ...]
    samples: int = 9
    limit: float = 1.0
    budget: float = 0.5

    def __post_init__(self) -> None:
        for knob, values, legal, most in (
            ("sizes", self.sizes, f"1 to {_MOST:,}", _MOST),
            ("threads", self.threads, "1 to 1,024", 1024),
        ):
            if not values or not all(1 <= value <= most for value in values):
                raise out_of_range("codecs", knob, values, legal)
        if not 3 <= self.samples <= 1000:
            raise out_of_range("codecs", "samples", self.samples, "3 to 1,000")
        for knob, seconds in (("limit", self.limit), ("budget", self.budget)):
            if not seconds > 0:
                raise out_of_range("codecs", knob, seconds, "seconds > 0")

    @classmethod
    def of(
        cls,
        chosen: str | None = None,
        sizes: str | None = None,
        threads: str | None = None,
        samples: int | None = None,
        *,
        limit: float | None = None,
        budget: float | None = None,
        quick: bool = False,
    ) -> Plan:
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
        found = dict.fromkeys(canonical(name) for word in words for name in groups.get(word, [word]))
        cores = os.cpu_count() or 1
        return cls(
            methods=tuple(sorted(found, key=lambda name: (_family(name), name))),
            named=chosen is not None and "all" not in words,
            sizes=tuple(sorted(set(parse_sizes(sizes or ("4K,1M" if quick else "4K,256K,1M,6.5M,25M"))))),
            threads=tuple(sorted(set(_counts(threads)))) if threads else (1,) if quick or cores == 1 else (1, 2),
            samples=samples if samples is not None else 3 if quick else 9,
            limit=limit if limit is not None else 0.5 if quick else 1.0,
            budget=budget if budget is not None else 0.5,
        )

    def covers(self, name: str, size: int, threads: int) -> bool:
        """Whether this method is measured at this size, with so many threads. Methods without a goal are only for smaller
        tensors and the fewest threads, unless they were named: so that a run takes minutes.
        """
        modest = size < LARGE and threads == self.threads[0]
        return self.named or modest or _has_goal(name)

    def jobs(self, size: int, threads: int) -> list[tuple[str, float]]:
        """What is measured at this size, with so many threads, in this order, and about how many seconds each takes."""
        names = [name for name in self.methods if self.covers(name, size, threads)]
        return [(name, self._seconds(name, size)) for name in (YARDSTICKS, PARTS, *names)]

    def seconds(self) -> float:
        """About how long all of it takes, on two cores of a server; other machines differ by a factor of two or more."""
        return sum(seconds for count in self.threads for size in self.sizes for _, seconds in self.jobs(size, count))

    def _seconds(self, name: str, size: int) -> float:
        millions, often = size / 1e6, self.samples / 9
        if name == YARDSTICKS:
            return often * (0.1 + 0.03 * millions)
        if name == PARTS:
            return often * (0.8 + 0.15 * millions) if size >= COLD else 0.0
        if _has_goal(name):  # the most of it for what it is compared with
            return min(1.5 * millions, 2.5 * self.budget + 0.2 * millions) + often * (0.2 + 0.04 * millions)
        return often * min(0.15 + 1.3 * millions, 6 * self.budget)


def parse_sizes(text: str) -> list[int]:
    """``"4K,6.5M"`` -> ``[4096, 6500000]``: K is 1,024, and M is 1,000,000.

    Raises:
        ConfigurationError: not such a list.
    """
    sizes = []
    for part in text.split(","):
        found = _SIZE.fullmatch(part.strip().upper())
        size = float(found[1]) * _UNITS[found[2]] if found else 0.5
        if size != int(size):
            raise ConfigurationError(
                f"codecs: size {part!r} is not a whole number of elements; legal: such as 4096, 256K or 6.5M"
            )
        sizes.append(int(size))
    return sizes


def size_text(size: int) -> str:
    """The shortest way to write a size that is still readable: ``256K``, ``6.5M``, ``1000``."""
    if size >= 1_000_000 and size % 100_000 == 0:
        return f"{size / 1_000_000:g}M"
    return f"{size // 1024}K" if size >= 1024 and size % 1024 == 0 else str(size)


def _counts(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigurationError(
            f"codecs: threads {text!r} are not whole numbers with commas between; legal: such as 1,2"
        ) from error


@functools.cache
def _has_goal(name: str) -> bool:
    return any(goal.is_about(name) for goal in GOALS)


def _family(name: str) -> str:
    return recipe(name.partition(":")[0]).family
