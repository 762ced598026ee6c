"""Overlap of arithmetic and memory in kernels that pass twice: ``python -m benchmarks.codecs.overlap``.

Three times for a number, of encoding with a memory on one thread: *arithmetic* alone (a piece that stays in the second cache,
again and again), *traffic* alone (the bytes that the passes move, at the speed of a copy that is measured beside it), and all
numbers from memory. No kernel of these passes is faster than the larger of the first two, and none should be slower than
their sum.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from benchmarks.codecs import floors
from benchmarks.codecs.floors import Floors
from benchmarks.codecs.goals import goals_of
from grace.contract.workspace import Workspace
from grace.kernels import encode_entries, encode_quantiles, rotate_norms, sum_entries
from grace.kernels.quantiles.samples import count_seen
from grace.methods.common.integer_table import bounds_of, count_sum_bits
from grace.methods.sketch import Sketch
from grace.methods.thc import THC
from grace.random import Stream
from grace_bench.codecs.buffers import WORKERS, Buffers
from grace_bench.codecs.clock import FEEDBACK, Case, CaseSamples, Clock

CACHED = 1 << 14  # numbers of which five tensors take a third of a second-level cache of 1 MiB
FEW = 1 << 10  # that take little more than the calls do
_SHARED, _PRIVATE = Stream(1, "THC", "w", None, 0), Stream(1, "THC", "w", 0, 0)
_HEADS = ("method", "cycles of 16", "arithmetic", "traffic", "floor", "sum of both", "measured", "goal")


@dataclass(frozen=True, slots=True)
class Passes:
    """Kernels that encode with a memory.

    method: whose. bytes: that all passes move for a number. of: all passes over these numbers, as a function to time.
    """

    method: str
    bytes: float
    of: Callable[[Buffers], Callable[[], object]]


def _thc(buffers: Buffers) -> Callable[[], object]:
    thc, n = THC(), buffers.n
    y = Workspace().take((1, n), torch.float32, buffers.x.device)
    g, chunk = thc.table[-1], math.ceil(n / WORKERS)
    root = torch.tensor(math.sqrt(thc.block))

    def run() -> None:
        norms, _ = rotate_norms(buffers.x, thc.block, _SHARED, y, buffers.memory)
        bounds, more = bounds_of(norms, root, thc.reach), (buffers.x, buffers.memory, buffers.rest)
        codes = encode_entries(y, bounds, thc.block, thc.table, WORKERS, _PRIVATE, _SHARED, *more)
        sum_entries(codes, thc.table, chunk, count_sum_bits(g, WORKERS))

    return run


def _sketch(buffers: Buffers) -> Callable[[], object]:
    sketch, n = Sketch(), buffers.n
    seen = count_seen(n, sketch.sample) if n > CACHED else max(1, int(n * sketch.sample))
    return lambda: encode_quantiles(
        buffers.x, sketch.quantiles, sketch.zero_edge, seen, _PRIVATE, buffers.memory, buffers.rest
    )


# x, memory and rest are 4 bytes each. thc: they and y, which is written and read, x and memory twice; codes twice; sums.
# sketch: what is summed up is written and read where the rest is written again; codes twice.
PASSES = (Passes("thc", 12 + 8 + 8 + 1 + 1 / 8, _thc), Passes("sketch", 12 + 8 + 1, _sketch))


def row(passes: Passes, here: Floors, arithmetic: float, measured: float) -> list[str]:
    """A line of the table; ``arithmetic`` and ``measured`` are seconds for a number, what is told multiples of ``add_``."""
    traffic = passes.bytes * here.byte
    goal = goals_of(FEEDBACK, passes.method, 25_000_000)[0].value
    ratios = (arithmetic, traffic, max(arithmetic, traffic), arithmetic + traffic, measured)
    cycles = 16 * arithmetic / here.cycle
    return [passes.method, f"{cycles:.0f}", *(f"{seconds / here.add:.2f}" for seconds in ratios), f"{goal:g}"]


def measure(n: int, samples: int, clock: Clock | None = None) -> list[list[str]]:
    """Lines of the table, of so many numbers."""
    clock = clock or Clock(limit=60.0, now=time.thread_time)  # whoever else computes takes none of it
    large, small, least = Buffers(n), Buffers(CACHED), Buffers(FEW)
    here = floors.measure(clock, large, 1, samples)
    out = []
    for passes in PASSES:
        cached, calls, whole = (Case("", passes.of(buffers)) for buffers in (small, least, large))
        timed = {
            **clock.measure(cached, [cached, calls], samples, cold=False),
            **clock.measure(large.add(), [whole], samples, cold=True),
        }
        seconds = {case: min(timing.seconds) for case, timing in timed.items() if isinstance(timing, CaseSamples)}
        arithmetic = (seconds[cached] - seconds[calls]) / (CACHED - FEW)
        out.append(row(passes, here, arithmetic, seconds[whole] / n))
    return out


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--elements", type=int, default=25_000_000)
    parser.add_argument("--samples", type=int, default=9)
    given = parser.parse_args(arguments)
    if given.elements < CACHED or given.samples < 1:
        parser.error(f"--elements {given.elements} --samples {given.samples}: legal: at least {CACHED}, and at least 1")
    torch.set_num_threads(1)
    told = f"{given.elements:,} numbers, one thread; the least of {given.samples} samples"
    sys.stdout.write(f"{told}, processor time in multiples of y.add_(x)\n")
    for line in (list(_HEADS), *measure(given.elements, given.samples)):
        sys.stdout.write("".join(f"{word:>14}" for word in line) + "\n")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
