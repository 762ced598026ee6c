"""Floors: no codec can be faster on this machine, so that its goal here is the larger of two floors.

*Memory*: the bytes that it moves, at the speed of a copy that is measured beside it. *Arithmetic*: the cycles that it needs
for a number, at the length of a cycle that a loop shows whose cycles are known. So a goal says the same of a machine with slow
memory and of one with a slow clock; and it is known which of the two a kernel has to be held against.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks.codecs.goals import Goal
from grace_bench.codecs.buffers import Buffers
from grace_bench.codecs.clock import Case, CaseSamples, Clock

MEMORY, ARITHMETIC = "memory", "arithmetic"
STREAM = 1.25  # a kernel with several streams may take so many times what a copy of as many bytes takes
_COPY, _ADD = 8, 12  # bytes for a number: read one and write one; read two and write one
_CHAIN, _LATENCY = (
    1 << 16,
    3,
)  # numbers of a chain of products of int64, each of which waits 3 cycles for the one before


@dataclass(frozen=True, slots=True)
class Floors:
    """Floors of one machine with so many threads, at one size.

    Attributes:
        byte: seconds of moving one, all threads together.
        cycle: seconds of one, of one thread.
        add: seconds of ``y.add_(x)`` for a number.
        threads: that share the work.
    """

    byte: float
    cycle: float
    add: float
    threads: int

    def seconds(self, goal: Goal) -> tuple[float, str]:
        """The goal for one number, and which floor is the larger: :data:`MEMORY` or :data:`ARITHMETIC`."""
        memory, arithmetic = STREAM * goal.bytes * self.byte, goal.cycles * self.cycle / self.threads
        return (memory, MEMORY) if memory > arithmetic else (arithmetic, ARITHMETIC)

    def limit(self, goal: Goal) -> tuple[float, str]:
        """The goal in multiples of ``y.add_(x)``, and which floor is the larger."""
        seconds, binds = self.seconds(goal)
        return seconds / self.add * (goal.spare if self.threads > 1 else 1.0), binds


def chain() -> Case:
    """A loop whose cycles are known, in the second cache."""
    x, out = torch.full((_CHAIN,), 3, dtype=torch.int64), torch.zeros(_CHAIN, dtype=torch.int64)
    return Case("chain of products", lambda: torch.cumprod(x, 0, out=out))


def measure(clock: Clock, buffers: Buffers, threads: int, samples: int) -> Floors:
    """The floors at the size of these buffers."""
    copy, add, loop = Case("copy", lambda: buffers.out.copy_(buffers.x)), buffers.add(), chain()
    moving = clock.measure(buffers.add(), [copy, add], samples, cold=True)
    seconds = _median(moving[add]) / buffers.n
    byte = min(_median(moving[copy]) / buffers.n / _COPY, seconds / _ADD)
    looping = clock.measure(loop, [loop], samples, cold=False)
    return Floors(byte, _least(looping[loop]) / _CHAIN / _LATENCY, seconds, threads)


def _median(timing: CaseSamples | float) -> float:
    return statistics.median(timing.seconds) if isinstance(timing, CaseSamples) else timing


def _least(timing: CaseSamples | float) -> float:
    """A chain never takes less than its cycles, and more only where somebody else computes."""
    seconds: Sequence[float] = timing.seconds if isinstance(timing, CaseSamples) else [timing]
    return min(seconds)
