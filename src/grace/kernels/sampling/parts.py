"""With which probability numbers are kept, and where the wires of those of a bucket lie once their widths are known.

Letters: a = |x|; ``p = min(a / unit, 1)`` is the probability that a number is kept, and 1/lambda is the unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from grace.kernels.index_codes.codes import most
from grace.kernels.packing import packed_bytes
from grace.kernels.sampling.units import unit_of_budget, unit_of_count, unit_of_variance
from grace.kernels.sparse_codes import Quanta
from grace.kernels.variable_sparse.parts import CountedCode, WirePlaces

COUNTS = 8  # bytes of the two counts
DENSE_COUNT = -1  # in place of the first count: all n values follow, and nothing else
SIGNS = Quanta(1)  # of what is not certain to be kept: the unit, and a sign for each


@dataclass(frozen=True)
class Chances:
    """The parameters from which the units of several tensors follow.

    ratio: share of the numbers that is kept on average, in (0, 1]. epsilon: the variance in units of the sum of squares, > 0;
    with it the ratio does not count. rounds: how often the unit is made anew for a count. shrink: whether what is sent is
    multiplied by 1/(1+omega).
    """

    ratio: float
    epsilon: float | None
    rounds: int
    shrink: bool

    def count(self, n: int) -> float:
        """Count of the numbers, of n, that are kept on average, if no p is cut off."""
        return max(1.0, self.ratio * n)

    def omega(self, n: int) -> float:
        """The variance in units of the sum of squares, at most."""
        # |x|_1 / (ratio n) is the first 1/lambda, and the rounds only lower it: E|C|^2 <= |x|_1^2 / (ratio n) + |x|^2
        return self.epsilon or n / self.count(n)

    def factor(self, n: int) -> float:
        """The factor of the numbers that are sent."""
        return 1 / (1 + self.omega(n)) if self.shrink else 1.0

    def unit(self, a: Tensor) -> float:
        """The unit of magnitudes ``a [n]`` that are not all zero."""
        if self.epsilon:
            return unit_of_variance(a, self.epsilon)
        return unit_of_count(a, self.count(a.numel()), self.rounds)


@dataclass(frozen=True)
class Budgets:
    """As :class:`Chances`, whose units spend a budget, where the largest numbers are certain to be kept.

    budget: how many numbers are kept on average, >= 1. ratio: which share of them, where there is no budget.
    """

    budget: float | None
    ratio: float
    shrink: bool

    def count(self, n: int) -> float:
        """Count of the numbers, of n >= 1, that are kept on average."""
        return min(max(1.0, self.ratio * n if self.budget is None else self.budget), float(n))

    def factor(self, n: int) -> float:
        """The factor of the numbers that are sent: with ``shrink`` 1/(1+omega)."""
        return self.count(n) / n if self.shrink else 1.0

    def unit(self, a: Tensor) -> float:
        """The unit of magnitudes ``a [n]`` that are not all zero."""
        return float(unit_of_budget(a, self.count(a.numel())))


@dataclass(frozen=True)
class DrawnCode:
    """Code of wires. index: a code of :data:`grace.kernels.index_codes.codes.CODES`, of both lists."""

    index: str

    @property
    def counted(self) -> CountedCode:
        """The code of wires with one list, of numbers that are not certain to be kept."""
        return CountedCode(self.index, False, SIGNS)

    def most(self, n: int) -> int:
        """Bytes of a wire of n numbers at most."""
        return COUNTS + 4 * n + 4 + packed_bytes(n, 1) + 4 * most(n, n, self.index) + 16  # fewer may need more


class DrawnPlaces(WirePlaces):
    """Positions of wires.

    Args:
        widths, own: as for :class:`grace.kernels.variable_sparse.parts.WirePlaces`. sizes: the n of each tensor. code: of the
        wires.

    rooms: int64 ``[W, T]``, for how many numbers of each wire there is room, in both lists together, or without any.

    Raises:
        PayloadError: a width that no sender writes.
    """

    def __init__(self, widths: Sequence[Sequence[int]], own: int, sizes: Sequence[int], code: DrawnCode):
        super().__init__(widths, own, [COUNTS] * len(sizes), list(map(code.most, sizes)))
        self.rooms = code.counted.rooms(np.array(self.widths, np.int64), np.array(sizes, np.int64))
