"""Fixed-point numbers of 0, 8, 16 or 32 bits, as many as each one's tag says: wires of a bucket, whose sizes travel first.

What is sent of each tensor is chosen; when the workers have told each other how long their wires are, these are written, and
added up where they come. ``codes`` has the wires.

Letters: T tensors of n numbers each, rows ``[1, n]`` of a :class:`grace.kernels.tensor_list.TensorList` without places; W
workers.
"""

from __future__ import annotations

from torch import Tensor

from grace.compute.dispatch import operation
from grace.kernels.tagged_fixed_point.parts import TaggedCode, TaggedPlaces
from grace.kernels.tensor_list import TensorList
from grace.kernels.variable_sparse.parts import Chosen

__all__ = ["TaggedCode", "TaggedPlaces", "choose_tagged_many", "sum_tagged_many", "write_tagged_many"]


@operation
def choose_tagged_many(like: Tensor, many: TensorList, code: TaggedCode) -> Chosen:
    """Selects from each tensor plus its memory; a tensor that is not finite sends zeros. ``like`` is a number on the
    device.
    """


@operation
def write_tagged_many(
    message: Tensor, many: TensorList, code: TaggedCode, chosen: Chosen, places: TaggedPlaces
) -> None:
    """Writes the wires of what was chosen to their places in ``message [s]`` uint8, which is zero before. Rests, if there are
    any, are now what the wires leave out; they mean nothing where a tensor is not finite.
    """


@operation
def sum_tagged_many(rows: Tensor, many: TensorList, code: TaggedCode, places: TaggedPlaces, weight: float) -> Tensor:
    """Sets each x, float32, to weight times the sum of what its wires in ``rows [W, s]`` uint8 say, added in their order:
    ``[T]`` bool, which had wires such as a sender writes.

    Raises:
        PayloadError: a wire is not, where the host can tell at once.
    """
