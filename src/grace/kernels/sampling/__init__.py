"""Samples of the numbers of a tensor, each kept with a probability of its own, of the tensors of a bucket.

What is certain to be kept travels as it is, of others the sign, in units that make up for those that are not kept: the wires
are those of :func:`grace.kernels.sampling.wire.sample_`. Which numbers are kept is chosen first; when the workers have told
each other how long their wires are, these are written, and added up where they come.

Letters: T tensors of n numbers each, rows ``[1, n]`` of a :class:`grace.kernels.tensor_list.TensorList` without places; W
workers.
"""

from __future__ import annotations

from torch import Tensor

from grace.compute.dispatch import operation
from grace.kernels.sampling.parts import Budgets, Chances, DrawnCode, DrawnPlaces
from grace.kernels.tensor_list import TensorList
from grace.kernels.variable_sparse.parts import Chosen

__all__ = ["Budgets", "Chances", "DrawnCode", "DrawnPlaces", "choose_drawn_many", "sum_drawn_many", "write_drawn_many"]


@operation
def choose_drawn_many(like: Tensor, many: TensorList, code: DrawnCode, chances: Chances | Budgets, step: int) -> Chosen:
    """A sample of each tensor plus its memory, drawn with the stream of the tensor in this step. Rests, if there are any,
    become that sum, or 0 where it is not finite; ``like`` is a number on the device.
    """


@operation
def write_drawn_many(message: Tensor, many: TensorList, code: DrawnCode, chosen: Chosen, places: DrawnPlaces) -> None:
    """Writes the wires of what was chosen to their places in ``message [s]`` uint8, which is zero before; rests keep what they
    leave out, as :meth:`grace.Compressor.encode_` has them.
    """


@operation
def sum_drawn_many(rows: Tensor, many: TensorList, code: DrawnCode, places: DrawnPlaces, weight: float) -> Tensor:
    """Sets each x, float32, to weight times the sum of what its wires in ``rows [W, s]`` uint8 say, added in their order:
    ``[T]`` bool, which had wires such as a sender writes.

    Raises:
        PayloadError: a wire is not, where the host can tell at once.
    """
