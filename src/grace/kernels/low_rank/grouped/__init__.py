"""The kernels for thin factors over the matrices of a bucket on an accelerator: the bits of :mod:`grace.kernels.low_rank`.

Letters: T matrices ``[m, l]``, each an x of a :class:`grace.kernels.tensor_list.TensorList` of one row; their left factors
``[r, m]``, side by side, are the lefts ``[s]``, their right ones ``[r, l]`` the rights ``[s]``, all float32. A state is a
right factor as ``[l, r]``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from grace.compute.dispatch import NoTable, operation
from grace.compute.host import host_int64, to_device
from grace.flags.capturing import capturing
from grace.kernels.blocks import block_count
from grace.kernels.low_rank.parts import PIECE, SPAN
from grace.kernels.tensor_list import TensorList, pair_programs

__all__ = [
    "Factors", "add_low_rank_many", "draw_many", "fit_many", "gather_rows_many", "orthonormalize_many", "project_columns_many",
    "project_rows_many", "scatter_rows_many", "solve_ridge_many", "split_low_rank_many", "succeed_many", "unit_columns_many",
    "unit_rows_many",
]  # fmt: skip

R = TypeVar("R")


class Factors:
    """Positions of the thin factors of T matrices, T >= 1, on a device.

    Args:
        sides: m, l and r of each. places: of each the number of a message where its left factor begins.

    lefts, rights: where each begins among all of its kind, and where the last one ends. highest: the largest r.
    row_sums, column_sums: how many sums of pieces of rows, and of columns, there are. tables: of calls of native kernels.
    """

    def __init__(self, sides: Sequence[tuple[int, int, int]], places: Sequence[int], device: torch.device):
        self.sides, self.places, self.device = tuple(sides), tuple(places), device
        self.highest = max((r for _, _, r in sides), default=0)
        rows, columns = ([block_count(of[way], size) for of in sides] for way, size in ((1, SPAN), (0, PIECE)))
        counts = [(r * m, r * l) for m, l, r in sides]
        self.lefts, self.rights = (begins([count[way] for count in counts]) for way in (0, 1))
        row_sums, column_sums = (
            begins([pieces * count[way] if pieces > 1 else 0 for pieces, count in zip(each, counts, strict=True)])
            for way, each in ((0, rows), (1, columns))
        )
        self.row_sums, self.column_sums = row_sums[-1], column_sums[-1]
        self._lines = [
            [*of, *rest]
            for of, *rest in zip(sides, self.lefts, self.rights, places, row_sums, column_sums, strict=False)
        ]
        self._made: dict[Hashable, Any] = {}
        self.tables: dict[Hashable, Any] = {}

    @property
    def table(self) -> Tensor:
        """int64 ``[T, 8]`` on the device: m, l, r, where the left and the right factor begin, its place, and where the sums of
        its rows' and of its columns' pieces do.
        """
        return self.once("table", lambda: copied(host_int64(self._lines), self.device))

    def programs(self, counts: Sequence[int]) -> Tensor:
        """int32 ``[programs, 2]``: for each program its matrix and its number there, where each matrix has so many; copied to
        the device once.
        """
        key = tuple(counts)
        return self.once(("programs", key), lambda: copied(pair_programs(host_int64(key)), self.device))

    def once(self, key: Hashable, make: Callable[[], R]) -> R:
        """The result of ``make``, which follows from the sides and the key alone: computed once."""
        if key not in self._made:
            self._made[key] = make()
        made: R = self._made[key]
        return made

    def cut(self, flat: Tensor, places: Sequence[int]) -> list[Tensor]:
        """The pieces of ``flat [s]`` between these places, one after the other."""
        return list(flat.split_with_sizes([end - begin for begin, end in itertools.pairwise(places)]))


def copied(table: Tensor, device: torch.device) -> Tensor:
    """A table of the host's, of any shape, on the device.

    Raises:
        NoTable: work is captured.
    """
    if capturing():
        raise NoTable
    return to_device(table, device)


def begins(sizes: Sequence[int]) -> list[int]:
    """Start of each of these, one after the other, and end of the last one."""
    return [0, *itertools.accumulate(sizes)]


@operation
def draw_many(storage: Tensor, drawn: TensorList, step: int) -> None:
    """Sets each x of ``drawn``, ``[1, n_t]`` in the storage ``[s]``, to :meth:`grace.random.Stream.normal` of its stream."""


@operation
def unit_rows_many(rights: Tensor, states: TensorList, factors: Factors) -> None:
    """Sets the rights to what :func:`grace.kernels.unit_rows` makes of the states."""


@operation
def unit_columns_many(
    lefts: Tensor, columns: TensorList, factors: Factors, drawn: TensorList | None, share: float
) -> None:
    """Sets the lefts to ``columns``, one ``[m, r]`` of each, turned, as :func:`grace.kernels.unit_factor` scales them; plus
    ``share`` of what is ``drawn`` for it, if anything is.
    """


@operation
def solve_ridge_many(lefts: Tensor, narrow: Tensor, factors: Factors, lam: float) -> None:
    """Sets ``narrow``, float32 that lies as the lefts do, to :func:`grace.kernels.bound_rows` of what
    :func:`grace.kernels.solve_ridge` makes of each left factor, which is multiplied by what that was divided by.
    """


@operation
def project_rows_many(message: Tensor, matrices: TensorList, factors: Factors, rights: Tensor) -> None:
    """Puts ``(M Q)^T`` of each matrix and right factor into the message, in its place."""


@operation
def project_columns_many(rights: Tensor, matrices: TensorList, factors: Factors, lefts: Tensor) -> None:
    """Sets the rights to ``P^T M`` of each left factor and matrix."""


@operation
def orthonormalize_many(lefts: Tensor, message: Tensor, factors: Factors) -> None:
    """Sets the lefts to orthonormal rows that span what the message says of each, r <= m."""


@operation
def fit_many(rights: Tensor, factors: Factors, lefts: Tensor, matrices: TensorList, poison: bool) -> Tensor:
    """``[T]`` bool: for which matrices, whose left factors are orthonormal, :func:`grace.kernels.product_fits` holds; or
    where the host may read numbers at no cost, for which the rest is finite, which is the product. With ``poison`` that is
    what is left of a matrix without the product, and the right factors of others become NaN.
    """


@operation
def split_low_rank_many(
    lefts: Tensor, matrices: TensorList, factors: Factors, owns: Tensor | None, rights: Tensor
) -> None:
    """Subtracts ``p^T own`` from each matrix, unless there are none, and sets its rest, which may be itself then, to
    ``p^T q``.
    """


@operation
def succeed_many(flags: Tensor, states: TensorList, factors: Factors, rights: Tensor) -> None:
    """Sets the rest of each state to its right factor where its flag, of ``[T]`` bool, is set, else to the state."""


@operation
def add_low_rank_many(lefts: Tensor, matrices: TensorList, factors: Factors, rights: Tensor, scale: float) -> None:
    """Adds ``scale (p^T q)`` to each matrix."""


@operation
def gather_rows_many(flat: Tensor, columns: TensorList, factors: Factors, right: bool) -> None:
    """Sets the lefts, or the rights, to ``columns``, one ``[m, r]`` or ``[l, r]`` of each, turned."""


@operation
def scatter_rows_many(flat: Tensor, columns: TensorList, factors: Factors, right: bool) -> None:
    """The other way around: sets the columns, ``[m, r]`` or ``[l, r]`` each, to the lefts or the rights."""
