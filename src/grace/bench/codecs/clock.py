"""Timing: one case after the other in turn, with empty caches where that is asked for."""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from grace.kernels import native

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_USUAL = 32 << 20  # bytes of a last-level cache that nobody tells about
_LEAST = 256 << 20  # a virtual machine may tell of less than there is
_WARM_SECONDS, _MOST_REPEATS = 2e-3, 25  # of one sample of a small case


def nothing() -> None:
    """Does nothing."""


@dataclass(slots=True, eq=False)
class Case:
    """One thing to time.

    operation: what it is called. run: what is timed. prepare: what is done before, untimed.
    kernels: the backend it runs on, None for the one in use; "torch" for plain torch code. what: how that goes about it.
    patience: so many times the limit is a run allowed to take.
    """

    operation: str
    run: Callable[[], object]
    prepare: Callable[[], object] = nothing
    kernels: str | None = None
    what: str = ""
    patience: float = 1.0

    def seconds(self, clear: Callable[[], None]) -> float:
        """Runs once."""
        self.prepare()
        clear()
        start = time.perf_counter()
        self.run()
        return time.perf_counter() - start


@dataclass(frozen=True, slots=True)
class Timing:
    """Samples in seconds, and as multiples of the yardstick's neighbouring sample."""

    seconds: list[float]
    ratios: list[float]


class Clock:
    """Times cases. ``cold`` empties the caches before each sample, by writing a buffer larger than the last-level cache.

    Args:
        limit: a case of which one run takes more seconds is not timed.
        eviction: bytes of that buffer; by default four times the cache, at least 256 MiB, at most a quarter of what memory
            is free.
    """

    def __init__(self, limit: float, eviction: int | None = None):
        self.limit = limit
        self.cache = last_level_cache()
        free = available_memory()
        self.eviction = eviction or min(max(4 * self.cache, _LEAST), max(free // 4, 1 << 20))
        self._buffer = torch.zeros(self.eviction // 4)

    def clear(self) -> None:
        """Empties the caches of everything but the buffer."""
        self._buffer.add_(1.0)

    def measure(self, yard: Case, cases: Sequence[Case], samples: int, *, cold: bool) -> dict[Case, Timing | float]:
        """So many samples of each case, in turn, each turn in another order, with one of the yardstick before them.

        A case that takes longer than the limit, twice, gets the seconds of a run in place of a timing. One of which all
        samples would take twice the limit gets fewer, at least three.
        """
        clear = self.clear if cold else nothing
        out: dict[Case, Timing | float] = {}
        with _steady():
            self._sample(yard, clear, 1)
            turns: dict[Case, int] = {}
            repeats: dict[Case, int] = {yard: 1}
            for case in (yard, *cases):
                once = self._sample(case, clear, 1)
                for _ in range(1 if cold else 3):  # the first run is slow: it loads code and makes what is kept
                    if once > self.limit / 10 or not cold:
                        once = min(once, self._sample(case, clear, 1))
                if once > self.limit * case.patience and case is not yard:
                    out[case] = once
                    continue
                once = max(once, 1e-9)
                turns[case] = samples if case is yard else max(3, min(samples, int(2 * self.limit / once)))
                repeats[case] = 1 if cold else max(3, min(_MOST_REPEATS, int(_WARM_SECONDS / once)))
            found = {case: Timing([], []) for case in turns if case is not yard}
            for turn in range(samples):
                mine = [case for case in found if turn < turns[case]]
                base = self._sample(yard, clear, repeats[yard])
                for case in mine[turn % max(1, len(mine)) :] + mine[: turn % max(1, len(mine))]:
                    took = self._sample(case, clear, repeats[case])
                    found[case].seconds.append(took)
                    found[case].ratios.append(took / base)
        return {**out, **found}

    def _sample(self, case: Case, clear: Callable[[], None], repeats: int) -> float:
        choice = case.kernels if case.kernels not in (None, "torch") else None
        with native.using(choice) if choice else contextlib.nullcontext():
            return statistics.median(case.seconds(clear) for _ in range(repeats))


@contextlib.contextmanager
def _steady() -> Iterator[None]:
    """Without the garbage collector's pauses."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """So many threads for torch and the kernels, for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def last_level_cache() -> int:
    """Bytes of the largest cache of this processor, as the system tells; 32 MiB where it does not."""
    sizes = []
    for file in _CACHES.glob("index*/size"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            text = file.read_text().strip()
            sizes.append(int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[text[-1]])
    return max(sizes, default=_USUAL)


def available_memory() -> int:
    """Bytes that could be allocated, as the system tells; 4 GiB where it does not."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    return 4 << 30
