"""Places of non-zeros, and a sketch of the quantile buckets of their values: the wires of sketchml, of a bucket.

A wire is a count k, how many buckets hold negative numbers (int32 each) and q means (float32); if k > 0 the packed groups of
the k numbers, the code of their places, and the cells of :mod:`grace.kernels.minmax_sketch.sketch`. Sizes follow from the data
and travel first: what is sent of each tensor is chosen; when the workers have told each other how long their wires are, these
are written, and added up where they come.

Letters: T tensors of n numbers each, rows ``[1, n]`` of a :class:`grace.kernels.tensor_list.TensorList` without places; W
workers.
"""

from __future__ import annotations

from torch import Tensor

from grace.compute.dispatch import operation
from grace.kernels.minmax_sketch.parts import MinMaxCode, MinMaxPlaces
from grace.kernels.tensor_list import TensorList
from grace.kernels.variable_sparse.parts import Chosen

__all__ = ["MinMaxCode", "MinMaxPlaces", "choose_minmax_many", "sum_minmax_many", "write_minmax_many"]


@operation
def choose_minmax_many(like: Tensor, many: TensorList, code: MinMaxCode, step: int) -> Chosen:
    """Selects from each tensor plus its memory, with its stream at this step; ``like`` is a number on the device. Rests, if
    there are any, become that sum, 0 where it is not finite: :func:`write_minmax_many` takes away what is sent.
    """


@operation
def write_minmax_many(
    message: Tensor, many: TensorList, code: MinMaxCode, chosen: Chosen, places: MinMaxPlaces
) -> None:
    """Writes the wires of what was chosen to their places in ``message [s]`` uint8, which is zero before. Rests keep what they
    leave out; they mean nothing where a tensor is not finite, whose wire is that of zeros.
    """


@operation
def sum_minmax_many(rows: Tensor, many: TensorList, code: MinMaxCode, places: MinMaxPlaces, weight: float) -> Tensor:
    """Sets each x, float32, to weight times the sum of what its wires in ``rows [W, s]`` uint8 say, added in their order:
    ``[T]`` bool, which had wires such as a sender writes.

    Raises:
        PayloadError: a wire is not, where the host can tell at once.
    """
