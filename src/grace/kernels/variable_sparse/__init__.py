"""Wires that say how many numbers they hold, of the tensors of a bucket: it follows from the data, so that sizes travel first.

The wires are those of :func:`grace.kernels.sparse.payloads.write_counted_`: a count (int32), k values, the code of their
indices; or -1 and all n values, where that is not larger. Or they are those of
:func:`grace.kernels.sparse_codes.wire.write_coded_`. What is sent of each tensor is chosen first; when the workers have told
each other how long their wires are, these are written, and added up where they come.

Letters: T tensors of n numbers each, rows ``[1, n]`` of a :class:`grace.kernels.tensor_list.TensorList` without places; W
workers.
"""

from __future__ import annotations

from torch import Tensor

from grace.compute.dispatch import operation
from grace.kernels.tensor_list import TensorList
from grace.kernels.variable_sparse.parts import Chosen, CountedCode, CountedPlaces
from grace.kernels.variable_sparse.sampled import Sampling
from grace.kernels.variable_sparse.sides import SideSelection

__all__ = [
    "Chosen",
    "CountedCode",
    "CountedPlaces",
    "Sampling",
    "SideSelection",
    "choose_coded_many",
    "choose_reaching_many",
    "choose_sampled_many",
    "choose_sides_many",
    "sum_counted_many",
    "write_chosen_many",
]


@operation
def choose_reaching_many(bounds: Tensor, many: TensorList, code: CountedCode, *, strict: bool) -> Chosen:
    """Selects from each tensor plus its memory what reaches (strict: exceeds) its bound, of ``[T]`` float64. Rests, if there
    are any, become that sum.
    """


@operation
def choose_coded_many(fronts: Tensor, bounds: Tensor, many: TensorList, code: CountedCode, *, strict: bool) -> Chosen:
    """As :func:`choose_reaching_many`, where codes travel, and ``fronts [T]`` int32, the bits of a float32 or an exponent. Of
    a tensor whose front is 0, or that is not finite, no number does.
    """


@operation
def choose_sampled_many(like: Tensor, many: TensorList, code: CountedCode, sampling: Sampling, step: int) -> Chosen:
    """Selects from each tensor plus its memory by ``sampling`` in this step, with the stream of the tensor, forked by 0.
    Rests, if there are any, become that sum, or 0 where it is not finite; ``like`` is a number on the device.
    """


@operation
def choose_sides_many(like: Tensor, many: TensorList, code: CountedCode, sides: SideSelection, step: int) -> Chosen:
    """Selects from each tensor plus its memory by ``sides`` in this step, as codes of
    :class:`grace.kernels.sparse_codes.SideMeans`; nothing where it is not finite. Each side has the stream of the tensor,
    forked by its number. Rests, if there are any, become that sum; ``like`` is a number on the device.
    """


@operation
def write_chosen_many(
    message: Tensor, many: TensorList, code: CountedCode, chosen: Chosen, places: CountedPlaces
) -> None:
    """Writes the wires of what was chosen to their places in ``message [s]`` uint8, which is zero before; rests keep what they
    leave out, as :meth:`grace.Compressor.encode_` has them.
    """


@operation
def sum_counted_many(rows: Tensor, many: TensorList, code: CountedCode, places: CountedPlaces, weight: float) -> Tensor:
    """Sets each x, float32, to weight times the sum of what its wires in ``rows [W, s]`` uint8 say, added in their order:
    ``[T]`` bool, which had wires such as a sender writes.

    Raises:
        PayloadError: a wire is not, where the host can tell at once.
    """
