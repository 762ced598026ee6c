"""The kernels for thin factors over the matrices of a bucket: each is one call of native code for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from grace.compute import native
from grace.kernels.call_table import THREADS, CallTable, Slot
from grace.kernels.low_rank import native as declared  # noqa: F401 - says what the kernels take

_MATRIX, _LEFT, _OWN, _RIGHT, _OUT = (Slot() for _ in range(5))


class LowRankMany:
    """The operations of :mod:`grace.kernels.low_rank`, with the same bits, for T matrices. All tensors are float32,
    contiguous and given by their addresses: matrices ``[m, l]``, left factors ``[r, m]``, right ones ``[r, l]``.

    Args:
        sides: m, l and r of each matrix.

    Only where :func:`grace.kernels.call_table.possible`.
    """

    def __init__(self, sides: Sequence[tuple[int, int, int]]):
        c = native.c

        def table(kernel: Callable[..., int], *slots: Slot) -> CallTable:
            return CallTable(kernel, [(*slots, *side, THREADS) for side in sides])

        self._rows = table(c.project_rows, _MATRIX, _RIGHT, _LEFT)
        self._columns = table(c.project_columns, _MATRIX, _LEFT, _OWN)
        self._split = table(c.split_low_rank, _MATRIX, _OUT, _LEFT, _OWN, _RIGHT)
        self._bases = CallTable(c.orthonormalize, [(_LEFT, _OUT, r, m, THREADS) for m, _, r in sides])
        self._add = {
            scale: CallTable(c.add_low_rank, [(_OUT, _LEFT, _RIGHT, *side, scale, THREADS) for side in sides])
            for scale in (1.0, -1.0)
        }

    def project_rows(self, matrices: list[int], rights: list[int], outs: list[int]) -> None:
        """Sets each of ``outs`` to ``(M Q)^T``."""
        _run(self._rows, {_MATRIX: matrices, _RIGHT: rights, _LEFT: outs})

    def project_columns(self, matrices: list[int], lefts: list[int], outs: list[int]) -> None:
        """Sets each of ``outs`` to ``P^T M``."""
        _run(self._columns, {_MATRIX: matrices, _LEFT: lefts, _OWN: outs})

    def orthonormalize(self, lefts: list[int], outs: list[int]) -> None:
        """Sets each of ``outs`` to orthonormal rows that span those of a left factor."""
        _run(self._bases, {_LEFT: lefts, _OUT: outs})

    def add(self, outs: list[int], lefts: list[int], rights: list[int], scale: float) -> None:
        """Adds ``scale (p^T q)`` to each of ``outs [m, l]``; scale is 1 or -1."""
        _run(self._add[scale], {_OUT: outs, _LEFT: lefts, _RIGHT: rights})

    def split(
        self, matrices: list[int] | None, lefts: list[int], owns: list[int], rights: list[int], outs: list[int]
    ) -> None:
        """Subtracts ``p^T own`` from each matrix, unless there are none, and sets each of ``outs [m, l]`` to ``p^T q``."""
        _run(self._split, {_MATRIX: matrices or 0, _LEFT: lefts, _OWN: owns, _RIGHT: rights, _OUT: outs})


def _run(table: CallTable, words: dict[Slot, Any]) -> None:
    for slot, addresses in words.items():
        table.put(slot, addresses)
    table.run()
