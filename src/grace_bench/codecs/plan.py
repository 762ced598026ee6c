"""The plan of a measurement: which methods, at which sizes, with how many threads, how often."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from grace.compute import resources
from grace.contract.knobs import Positive, Range, check_knobs, name_owner
from grace.errors import ConfigurationError, out_of_range
from grace.registry import method, methods, parse, recipe, spell, split_methods
from grace_bench.codecs.buffers import WORKERS

COLD = 1_000_000  # from this size on caches are emptied before every sample; smaller tensors are measured warm
YARDSTICKS = "yardsticks"  # a job that is no method
_UNITS = {"": 1, "K": 1024, "M": 1_000_000}
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)([KM]?)")
_MOST = 1_000_000_000


@dataclass(frozen=True, slots=True)
class CodecPlan:
    """The plan of a measurement.

    Args:
        methods: in their canonical form, each once.
        sizes: numbers in a tensor, ascending, each 1 to 1,000,000,000.
        threads: ascending, each 1 to 1,024.
        samples: of each case, 3 to 1,000.
        limit: a case of which one run takes more seconds than this is left out, > 0.
        budget: seconds that the samples of a case may take together, > 0; what would take longer is sampled less often.
        workers: that exchange, 2 to 256: so many wires are decoded.
        device: where: cpu, cuda, cuda:1.
    """

    methods: tuple[str, ...]
    sizes: tuple[int, ...]
    threads: tuple[int, ...]
    samples: Annotated[int, Range(3, 1000)] = 9
    limit: Positive = 1.0
    budget: Positive = 0.5
    workers: Annotated[int, Range(2, 256)] = WORKERS
    device: str = "cpu"

    def __post_init__(self) -> None:
        for knob, values, most in (("sizes", self.sizes, _MOST), ("threads", self.threads, 1024)):
            if not values or not all(1 <= value <= most for value in values):
                raise out_of_range("codecs", knob, values, f"1 to {most:,}")
        if not self.methods:
            raise out_of_range("codecs", "methods", "", "one method or more, with commas between")
        check_knobs(self)

    def jobs(self, size: int, threads: int) -> list[tuple[str, float]]:
        """The jobs at this size, with so many threads, in this order, and about how many seconds each takes."""
        often, millions = self.samples / 9, size / 1e6
        each = often * min(0.15 + 1.3 * millions, 6 * self.budget)
        return [(YARDSTICKS, often * (0.1 + 0.03 * millions)), *((name, each) for name in self.methods)]

    def seconds(self) -> float:
        """About how long all of it takes, on two cores of a server; other machines differ by a factor of two or more."""
        return sum(seconds for count in self.threads for size in self.sizes for _, seconds in self.jobs(size, count))


name_owner(CodecPlan, "codecs")


def plan_of(
    chosen: str | None = None,
    sizes: str = "256K,1M,10M",
    threads: Sequence[int] = (),
    samples: int = 5,
    *,
    limit: float = 1.0,
    budget: float = 0.25,
    workers: int = WORKERS,
    device: str = "cpu",
) -> CodecPlan:
    """A plan from the words of the command line.

    Args:
        chosen: methods with commas between; None: all that are registered.
        sizes: such as "4K,6.5M".
        threads: none: as many as there are cores.
        samples: of each case.
        limit: seconds of one run.
        budget: seconds of all samples of a case.
        workers: that exchange.
        device: where.

    Raises:
        ConfigurationError: a method, size or number that is not legal.
    """
    names = methods() if chosen is None else split_methods(chosen)
    counts = sort_numbers(threads or [resources.cores()])
    return CodecPlan(
        by_family(names), sort_numbers(parse_sizes(sizes)), counts, samples, limit, budget, workers, device
    )


def by_family(names: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Each method once, in its canonical form, beside its kin."""
    canonical_names = {canonical(name) for name in names}
    return tuple(sorted(canonical_names, key=lambda name: (recipe(parse(name)[0]).family, name)))


@functools.cache
def canonical(name: str) -> str:
    """The same string for all that make the same method: the bare name where that is enough, else as ``spell`` writes it."""
    built, bare = method(name), recipe(parse(name)[0]).name
    return bare if method(bare) == built else spell(built)


def sort_numbers(numbers: Sequence[int]) -> tuple[int, ...]:
    """Each number once."""
    return tuple(sorted(set(numbers)))


def parse_sizes(text: str) -> list[int]:
    """``"4K,6.5M"`` -> ``[4096, 6500000]``: K is 1,024, and M is 1,000,000.

    Raises:
        ConfigurationError: not such a list.
    """
    sizes = []
    for part in text.split(","):
        match = _SIZE.fullmatch(part.strip().upper())
        size = float(match[1]) * _UNITS[match[2]] if match else 0.5
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
