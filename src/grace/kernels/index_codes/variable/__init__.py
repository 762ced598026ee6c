"""Wires of pairs of the tensors of a bucket whose places travel as gaps, delta or rice: sizes depend on them and travel
first.

A wire holds values, then the code of their places (``index_codes.gaps``). What is sent of each tensor is chosen first; when
the workers have told each other how long their wires are, these are written, and added up where they come.

Letters: T tensors of n numbers each, rows ``[1, n]`` of a :class:`grace.kernels.tensor_list.TensorList` without places; k
pairs each, K of all; W workers.
"""

from __future__ import annotations

from torch import Tensor

from grace.compute.dispatch import operation
from grace.kernels.index_codes.variable.parts import GapLists, GapPairs, GapPlaces
from grace.kernels.tensor_list import TensorList
from grace.kernels.variable_sparse import Chosen

__all__ = ["GapLists", "GapPairs", "GapPlaces", "choose_listed_many", "sum_gap_pairs_many", "write_gap_pairs_many"]


@operation
def choose_listed_many(index: Tensor, fields: Tensor, finite: Tensor, many: TensorList, lists: GapLists) -> Chosen:
    """Sizes of the wires of lists side by side in ``index [K]`` int64, which are legal, and of what comes before them,
    side by side in ``fields [F]`` uint8. ``finite [T]`` bool: which tensors are.
    """


@operation
def write_gap_pairs_many(message: Tensor, many: TensorList, code: GapPairs, chosen: Chosen, places: GapPlaces) -> None:
    """Writes the wires of what was chosen to their places in ``message [s]`` uint8, which is zero before."""


@operation
def sum_gap_pairs_many(rows: Tensor, many: TensorList, code: GapPairs, places: GapPlaces, weight: float) -> Tensor:
    """Sets each x, float32, to weight times the sum of what its wires in ``rows [W, s]`` uint8 say, added in their order:
    ``[T]`` bool, which had wires such as a sender writes.

    Raises:
        PayloadError: a wire is not, where the host can tell at once.
    """
