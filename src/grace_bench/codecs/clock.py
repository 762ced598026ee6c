"""Timing: the cases take turns, with empty caches if asked for."""

from __future__ import annotations

import contextlib
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from grace.compute import backends, resources
from grace.flags.refusals import Refusals
from grace_bench import machine

ADD = "add_"  # the yardstick
ENCODE, FEEDBACK, DECODE = OPERATIONS = "encode", "encode with error feedback", "decode and sum"
_LEAST = 256 << 20  # a virtual machine may report less cache than there is
_WARM_SECONDS, _MOST_REPEATS = 2e-3, 25  # of one sample of a small case


def do_nothing() -> None:
    """Does nothing."""


@dataclass(slots=True, eq=False)
class Case:
    """A thing to time.

    operation: what it is called. run: what is timed. prepare: what is done before, untimed.
    kernels: the backend it runs on, None for the one in use; "torch" for plain torch code. what: how that goes about it.
    patience: how many times the limit a run may take.
    """

    operation: str
    run: Callable[[], object]
    prepare: Callable[[], object] = do_nothing
    kernels: str | None = None
    what: str = ""
    patience: float = 1.0

    def seconds(self, clear: Callable[[], None], now: Callable[[], float] = time.perf_counter) -> float:
        """Runs once; ``now`` is the clock."""
        self.prepare()
        clear()
        start = now()
        self.run()
        return now() - start


@dataclass(frozen=True, slots=True)
class CaseSamples:
    """Samples in seconds, and as multiples of the yardstick's neighboring sample."""

    seconds: list[float]
    ratios: list[float]


class Clock:
    """Times cases. ``cold`` empties the caches before each sample, by writing a buffer larger than the last-level cache.

    Args:
        limit: a case is not timed if one run takes more seconds than this.
        eviction: bytes of that buffer; by default four times the cache, at least 256 MiB, at most a quarter of the free
            memory.
        budget: seconds that all samples of a case may take, including their preparation.
        device: where the cases run. now: its clock.
    """

    def __init__(
        self,
        limit: float,
        eviction: int | None = None,
        budget: float = math.inf,
        device: torch.device | str = "cpu",
        now: Callable[[], float] = time.perf_counter,
    ):
        self.limit, self.budget, self.now = limit, budget, now
        self.cache = machine.last_level_cache()
        free = resources.available_memory()
        self.eviction = eviction or min(max(4 * self.cache, _LEAST), max(free // 4, 1 << 20))
        self._buffer = torch.zeros(self.eviction // 4, device=device)

    def clear(self) -> None:
        """Empties the caches of everything but the buffer."""
        self._buffer.add_(1.0)

    def measure(
        self, yard: Case, cases: Sequence[Case], samples: int, *, cold: bool
    ) -> dict[Case, CaseSamples | float]:
        """Takes ``samples`` of each case. Cases take turns, each turn in another order, after a sample of the yardstick.

        A case that takes longer than the limit gets the seconds of a run instead of a timing. One whose samples would take
        more than the budget gets fewer: at least three, or one if it is only there for comparison.
        """
        clear = self.clear if cold else do_nothing
        out: dict[Case, CaseSamples | float] = {}
        measured: dict[Case, CaseSamples] = {}
        repeats: dict[Case, int] = {}
        turns: dict[Case, int] = {}
        with _steady():
            once, _ = self._trial(yard, clear, cold)
            repeats[yard] = _repeats(once, cold)
            for case in cases:
                once, cost = self._trial(case, clear, cold)
                if once > self.limit * case.patience:
                    out[case] = once
                    continue
                repeats[case] = _repeats(once, cold)
                affordable = self.budget / (cost * repeats[case])
                turns[case] = int(max(1 if case.kernels else 3, min(samples, affordable)))
                measured[case] = CaseSamples([], [])
                if turns[case] == 1:  # the trial was the sample: what takes so long is no faster the second time
                    base = self._sample(yard, clear, repeats[yard])
                    measured[case] = CaseSamples([once], [once / base])
                    turns[case] = 0
            for turn in range(max(turns.values(), default=0)):
                due = [case for case in measured if turn < turns[case]]
                base = self._sample(yard, clear, repeats[yard])
                for case in due[turn % len(due) :] + due[: turn % len(due)]:
                    took = self._sample(case, clear, repeats[case])
                    measured[case].seconds.append(took)
                    measured[case].ratios.append(took / base)
        return {**out, **measured}

    def _trial(self, case: Case, clear: Callable[[], None], cold: bool) -> tuple[float, float]:
        """Seconds of a run alone, and with its preparation."""
        once = cost = math.inf
        for _ in range(2 if cold else 4):  # the first run is slow: it loads code and makes what is kept
            start = time.perf_counter()
            once = min(once, self._sample(case, clear, 1))
            cost = min(cost, time.perf_counter() - start)
            if once > min(2 * self.limit * case.patience, self.budget / 4):
                break
        return max(once, 1e-9), max(cost, 1e-9)

    def _sample(self, case: Case, clear: Callable[[], None], repeats: int) -> float:
        choice = case.kernels if case.kernels not in (None, "torch") else None
        # on a GPU what a decoder refuses is known later: here nobody asks
        with backends.using(choice) if choice else contextlib.nullcontext(), Refusals():
            return statistics.median(case.seconds(clear, self.now) for _ in range(repeats))


def _repeats(once: float, cold: bool) -> int:
    """Number of runs that make one sample."""
    return 1 if cold else max(1, min(_MOST_REPEATS, int(_WARM_SECONDS / once)))


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
