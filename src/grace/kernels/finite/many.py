"""Sums of the tensors of a bucket, by one call of native code."""

from __future__ import annotations

from collections.abc import Sequence

from grace.compute import native
from grace.kernels.finite import native as declared  # noqa: F401 - says what the kernel takes
from grace.kernels.noting import MEMORY, ROWS, THREADS, WIRE, Call, Table


class Sums:
    """``out = x + memory`` for T tensors of so many numbers each, float32 and contiguous, as
    :func:`grace.kernels.finite.sum_finite`; ``out`` may be x or the memory.

    Args:
        sizes: numbers of each. memory: whether there are memories; else ``out = x``.

    Only where :func:`grace.kernels.noting.possible`.
    """

    def __init__(self, sizes: Sequence[int], *, memory: bool):
        kernel, more = native.c.sum_finite, MEMORY if memory else None
        self._table = Table([Call(kernel, (ROWS, more, WIRE, n, THREADS), 0) for n in sizes]) if sizes else None

    def run(self, xs: list[int], memories: list[int] | int, outs: list[int]) -> list[bool]:
        """True if all of each sum is finite. All are given by their addresses, the memories by one if they are the same."""
        if self._table is None:
            return []
        self._table.put(ROWS, xs)
        self._table.put(MEMORY, memories)
        self._table.put(WIRE, outs)
        return [bool(done) for done in self._table.run(0)]
