"""Finiteness and sums of the tensors of a bucket, each by one call of native code."""

from __future__ import annotations

from collections.abc import Sequence

from grace.compute import native
from grace.kernels.call_table import MEMORY, ROWS, THREADS, WIRE, CallTable
from grace.kernels.finite import native as declared  # noqa: F401 - says what the kernels take


class Finiteness:
    """:func:`grace.kernels.finite.all_finite` of T tensors of so many numbers each, float32 and contiguous.

    Only where :func:`grace.kernels.call_table.possible`.
    """

    def __init__(self, sizes: Sequence[int]):
        self._table = CallTable(native.c.finite, [(ROWS, n, THREADS) for n in sizes])

    def run(self, xs: list[int]) -> list[bool]:
        """True for each that is finite throughout. They are given by their addresses."""
        self._table.put(ROWS, xs)
        return [done != 0 for done in self._table.run().tolist()]


class Sums:
    """``out = x + memory`` for T tensors of so many numbers each, float32 and contiguous, as
    :func:`grace.kernels.finite.sum_finite`; ``out`` may be x or the memory.

    Args:
        sizes: numbers of each. memory: whether there are memories; else ``out = x``.

    Only where :func:`grace.kernels.call_table.possible`.
    """

    def __init__(self, sizes: Sequence[int], *, memory: bool):
        kernel, more = native.c.sum_finite, MEMORY if memory else None
        self._table = CallTable(kernel, [(ROWS, more, WIRE, n, THREADS) for n in sizes]) if sizes else None

    def run(self, xs: list[int], memories: list[int] | int, outs: list[int]) -> list[bool]:
        """True if all of each sum is finite. All are given by their addresses, the memories by one if they are the same."""
        if self._table is None:
            return []
        self._table.put(ROWS, xs)
        self._table.put(MEMORY, memories)
        self._table.put(WIRE, outs)
        return [done != 0 for done in self._table.run().tolist()]
