"""Each number as the nearest of -M, 0 and M, five to a byte: wires of a bucket, with or without runs of zeros shortened.

With runs, sizes follow from the data and travel first: what is sent of each tensor is chosen; when the workers have told each
other how long their wires are, these are written, and added up where they come. ``codes`` has the wires.

Letters: T tensors of n numbers each, rows of a :class:`grace.kernels.tensor_list.TensorList`, which with runs has no places; L
= ceil(n/5); W workers.
"""

from __future__ import annotations

from torch import Tensor

from grace.compute.dispatch import operation
from grace.kernels.tensor_list import TensorList
from grace.kernels.ternary.parts import QuarticCode, QuarticPlaces
from grace.kernels.variable_sparse.parts import Chosen

__all__ = [
    "QuarticCode",
    "QuarticPlaces",
    "choose_quartic_many",
    "encode_ternary_many",
    "sum_quartic_many",
    "sum_ternary_many",
    "write_quartic_many",
]


@operation
def choose_quartic_many(like: Tensor, many: TensorList, code: QuarticCode) -> Chosen:
    """Selects from each tensor plus its memory; ``like`` is a number on the device. Rests, if there are any, become what
    the wires leave out; they mean nothing where a tensor is not finite, whose wire is that of zeros.
    """


@operation
def write_quartic_many(
    message: Tensor, many: TensorList, code: QuarticCode, chosen: Chosen, places: QuarticPlaces
) -> None:
    """Writes the wires of what was chosen to their places in ``message [s]`` uint8, which is zero before."""


@operation
def sum_quartic_many(rows: Tensor, many: TensorList, code: QuarticCode, places: QuarticPlaces, weight: float) -> Tensor:
    """Sets each x, float32, to weight times the sum of what its wires in ``rows [W, s]`` uint8 say, added in their order:
    ``[T]`` bool, which had wires such as a sender writes.

    Raises:
        PayloadError: a wire is not, where the host can tell at once.
    """


@operation
def encode_ternary_many(message: Tensor, many: TensorList, s: float) -> Tensor:
    """Writes the wires without runs, ``M = s max |x|``, of each tensor plus its memory to their places in ``message [s]``
    uint8: ``[T]`` bool, which were finite. Rests as in :func:`choose_quartic_many`.
    """


@operation
def sum_ternary_many(rows: Tensor, many: TensorList, weight: float) -> Tensor:
    """As :func:`sum_quartic_many`, of wires without runs, from their places in ``rows [W, s]`` uint8."""
