"""Goals of the kernels: the table that measured times are compared with.

Goals are multiples of ``torch y.add_(x)`` on equal buffers, cold, at any number of threads, if no other unit is said. Such a
multiple says what a codec may compute, on the machine where it was set: as cycles for a number it travels to others, and what
memory allows is measured there (:mod:`benchmarks.codecs.floors`).
"""

from __future__ import annotations

from dataclasses import dataclass

from grace_bench.codecs.clock import DECODE, ENCODE, FEEDBACK
from grace_bench.codecs.plan import COLD, canonical

RATIO, MICROSECONDS, PER_INDEX, BITS, COPIES = "x add_", "us", "ns per index", "bits per index", "x memcpy"
THRESHOLD = "threshold:v=10.7"  # keeps about 1 % of randn * exp(randn)
SMALL = 4096
SPEEDUP = 15.0  # over plain torch code
ADD_CYCLES = 13 / 16  # of y.add_(x) for a number, where the goals were set (docs/data/kernels.md)
PAYLOADS = 8  # that are decoded and summed
# Bytes of a wire for each number.
WIRES = {
    "efsignsgd": 0.126, "qsgd:bits=8": 1.016, "qsgd": 0.516, "qsgd:bits=2": 0.216, "natural": 1.0, "u8bit": 1.0, "topk": 0.051,
    "topk:ratio=0.001": 0.0055, "randomk": 0.04, THRESHOLD: 0.051, "thc": 0.504, "sketch": 0.5,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal.

    Args:
        row: the name of the goal.
        operation, method: what it is about; without a method it is about an operation of that name alone.
        value, stretch: what should be reached, and what a prototype has reached; in ``unit``.
        unit: of value and stretch.
        kernels: the kernels that it is for, where not for the best ones.
        spare: how many times as much several threads may take.
        at: the only size that it is for; without, all from 1,000,000 on.
    """

    row: str
    operation: str
    method: str | None
    value: float
    stretch: float | None = None
    unit: str = RATIO
    kernels: str | None = None
    spare: float = 1.0
    at: int | None = None

    @property
    def cycles(self) -> float:
        """Cycles of one thread, for a number; of goals in multiples of ``y.add_(x)``."""
        return self.value * ADD_CYCLES

    @property
    def bytes(self) -> float:
        """Bytes that are read and written for a number, at the least."""
        wire = WIRES.get(self.method or "topk", 0.0)
        if self.operation == DECODE:
            return 4 + PAYLOADS * wire
        return wire + (12 if self.operation == FEEDBACK else 4)  # gradient and memory in, what is left out

    def is_about(self, name: str) -> bool:
        """True if it is about this method."""
        return self.method is not None and canonical(self.method) == canonical(name)

    def holds_at(self, size: int) -> bool:
        """True if it is for tensors of this size."""
        return size == self.at if self.at is not None else size >= COLD

    def limit(self, threads: int) -> float:
        """The value to reach with so many threads."""
        return self.value * (self.spare if threads > 1 else 1.0)


BLOCK_CODECS = ("efsignsgd", "qsgd:bits=8", "qsgd", "qsgd:bits=2", "natural", "u8bit")
_TOP, _FEW = "topk", "topk:ratio=0.001"  # 1 % is the default
ZEROS, CONSTANT, SPARSE = "top-k 1 % of zeros", "top-k 1 % of a constant", "top-k 1 % of 99 % zeros"
ELIAS_FANO, ELIAS_FANO_FEW = "Elias-Fano encode 1 %", "Elias-Fano encode 0.1 %"
POWERSGD = "PowerSGD rank 4, 4096 x 1024, whole step"

GOALS: tuple[Goal, ...] = (
    Goal("threshold select 1 %", ENCODE, THRESHOLD, 0.8, 0.6),
    Goal("top-k exact 1 %", ENCODE, _TOP, 1.1, 0.8, spare=1.3),
    Goal("top-k exact 0.1 %", ENCODE, _FEW, 0.8, 0.6, spare=1.3),
    Goal("top-k + error feedback 1 %", FEEDBACK, _TOP, 1.8, 1.3, spare=1.3),
    Goal("top-k + error feedback 0.1 %", FEEDBACK, _FEW, 1.5, 1.15, spare=1.3),
    *(Goal(name, name, None, 5.0, 3.0, spare=1.3) for name in (ZEROS, CONSTANT, SPARSE)),
    Goal(f"{ELIAS_FANO}, time", ELIAS_FANO, None, 2.5, unit=PER_INDEX),
    Goal(f"{ELIAS_FANO}, size", ELIAS_FANO, None, 8.7, unit=BITS),
    Goal(f"{ELIAS_FANO_FEW}, time", ELIAS_FANO_FEW, None, 2.5, unit=PER_INDEX),
    Goal(f"{ELIAS_FANO_FEW}, size", ELIAS_FANO_FEW, None, 12.1, unit=BITS),
    Goal("top-k 1 %, decode and sum 8", DECODE, _TOP, 2.8, 2.0),
    Goal("sign + error feedback, block scale", FEEDBACK, "efsignsgd", 1.4, 1.1),
    Goal("sign, decode and sum 8", DECODE, "efsignsgd", 1.4, 1.0),
    Goal("8-bit stochastic quantize", ENCODE, "qsgd:bits=8", 1.1, 0.75),
    Goal("4-bit stochastic quantize", ENCODE, "qsgd", 1.1, 0.75),
    Goal("2-bit stochastic quantize", ENCODE, "qsgd:bits=2", 1.1, 0.75),
    Goal("8-bit quantize + error feedback", FEEDBACK, "qsgd:bits=8", 1.5, 1.2),
    Goal("4-bit quantize + error feedback", FEEDBACK, "qsgd", 1.5, 1.2),
    Goal("2-bit quantize + error feedback", FEEDBACK, "qsgd:bits=2", 1.5, 1.2),
    Goal("8-bit decode and sum 8", DECODE, "qsgd:bits=8", 2.0, 1.6),
    Goal("4-bit decode and sum 8", DECODE, "qsgd", 1.5, 1.1),
    Goal("2-bit decode and sum 8", DECODE, "qsgd:bits=2", 1.6, 1.2),
    Goal("natural encode", ENCODE, "natural", 1.2, 0.8),
    Goal("natural decode and sum 8", DECODE, "natural", 2.2, 1.7),
    Goal("8-bit codebook encode", ENCODE, "u8bit", 2.3, 1.7),
    Goal("8-bit codebook decode and sum 8", DECODE, "u8bit", 3.3, 2.6),
    Goal("rotated to a shared table + error feedback", FEEDBACK, "thc", 5.8),
    Goal("sums of a shared table, decode", DECODE, "thc", 4.0),
    Goal("buckets between quantiles + error feedback", FEEDBACK, "sketch", 4.0),
    Goal("buckets between quantiles, decode and sum 8", DECODE, "sketch", 4.0),
    Goal("random-k 1 %, no duplicates", ENCODE, "randomk", 0.4, 0.2),
    Goal(POWERSGD, POWERSGD, None, 10.0, 6.0, unit=COPIES),
    *(Goal(f"{name}, baseline instruction set", ENCODE, name, 3.0, kernels="native-base") for name in BLOCK_CODECS),
    *(Goal(f"{name}, 4K elements", ENCODE, name, 5.0, 2.5, unit=MICROSECONDS, at=SMALL) for name in BLOCK_CODECS),
    Goal("top-k + error feedback, 4K elements", FEEDBACK, _TOP, 12.0, 8.0, unit=MICROSECONDS, at=SMALL),
)


def goals_of(operation: str, name: str | None, size: int) -> list[Goal]:
    """The goals for this operation on tensors of this size, of this method or, with None, of none."""
    return [
        goal
        for goal in GOALS
        if goal.operation == operation
        and goal.holds_at(size)
        and (goal.method is None if name is None else goal.is_about(name))
    ]


def position(row: str) -> int:
    """Position of the goal of this name in the table; behind all others if there is none."""
    return next((at for at, goal in enumerate(GOALS) if goal.row == row), len(GOALS))
