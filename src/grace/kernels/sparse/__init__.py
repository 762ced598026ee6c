"""Wires of values and indices: written from a selection, and summed straight into a dense vector.

A wire holds k values (float32 or bfloat16), then the code of their indices (``grace.kernels.index_codes.fixed``). The
operations here know codes of fixed size; ``payloads`` is for all codes, and for as many values as there are.

Letters: b rows of n numbers, of which k are kept; W wires.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from grace.compute.dispatch import operation
from grace.kernels.index_codes.fixed import PlaceLists
from grace.kernels.sparse.parts import DENSE, LIST, Pairs, ScaledCodes, TopKPairs, WirePart
from grace.kernels.tensor_list import TensorList

__all__ = [
    "DENSE",
    "LIST",
    "Pairs",
    "ScaledCodes",
    "TopKPairs",
    "WirePart",
    "clear_listed_many",
    "encode_pairs",
    "encode_topk",
    "encode_topk_many",
    "put_listed_many",
    "sum_listed_many",
    "sum_sparse",
    "sum_topk",
    "sum_topk_many",
    "take_listed_many",
]


@operation
def encode_topk(rows: Tensor, pairs: TopKPairs, memory: Tensor | None, rest: Tensor | None) -> tuple[Tensor, bool]:
    """The wires uint8 ``[b, w]`` of the k largest of ``rows + memory``, and whether that was finite: :func:`take_topk`. The
    code is one of :data:`grace.kernels.index_codes.fixed.FIXED`.
    """


@operation
def encode_pairs(index: Tensor, sent: Tensor, n: int, code: str, *, narrow: bool) -> Tensor:
    """The wires ``[b, w]`` of values ``[b, k]`` at the places ``[b, k]``: ascending, below n, int32 or int64."""


@operation
def sum_sparse(parts: Sequence[WirePart], out: Tensor, weight: float, *, narrow: bool, add: bool = False) -> None:
    """Sets (adds to, with ``add``) ``out [n]``: weight times the sum of what the parts say, added in their order.

    Raises:
        PayloadError: too short a wire, values that are not finite, or an illegal list; ``out`` is then undefined.
    """


@operation
def sum_topk(received: Sequence[Tensor], out: Tensor, pairs: TopKPairs, weight: float, *, add: bool = False) -> None:
    """Sets (adds to, with ``add``) ``out [b, n]``: weight times the sum of what wires of :func:`encode_topk` ``[b, w]`` say.

    Raises:
        PayloadError: as :func:`sum_sparse`.
    """


@operation
def encode_topk_many(message: Tensor, many: TensorList, pairs: Pairs) -> Tensor:
    """As :func:`encode_topk` for each of T tensors, into its place in ``message [s]`` uint8: ``[T]`` bool, which of them were
    finite. Values are numbers.
    """


@operation
def sum_topk_many(rows: Tensor, many: TensorList, pairs: Pairs, weight: float) -> Tensor:
    """As :func:`sum_topk` for each of T tensors, from its places in ``rows [W, s]`` uint8, of all senders, into x: ``[T]``
    bool, which had wires such as a sender writes.
    """


@operation
def clear_listed_many(index: Tensor, values: Tensor, flags: Tensor, many: TensorList, lists: PlaceLists) -> None:
    """Lists the first places of each of T tensors whose flag, of ``[T]`` bool, is not set, with values of 0:
    ``index [K]`` int64 and ``values [K]`` float32.
    """


@operation
def put_listed_many(index: Tensor, values: Tensor, many: TensorList, lists: PlaceLists) -> None:
    """Sets the rests of T tensors, float32, at the places that lists side by side in ``index [K]`` int64 say to
    ``values [K]`` float32.
    """


@operation
def take_listed_many(
    message: Tensor, index: Tensor, many: TensorList, lists: PlaceLists, *, clear: bool = True
) -> None:
    """Sets the places of T tensors in ``message [s]`` float32, which are in bytes, to the numbers that lists side by side in
    ``index [K]`` int64 name: of the rests, which with ``clear`` are 0 there afterwards, or if there are none of the xs.
    """


@operation
def sum_listed_many(message: Tensor, index: Tensor, many: TensorList, lists: PlaceLists) -> Tensor:
    """Sets each of T tensors x, float32, to what its place in ``message [s]`` float32 says of the numbers that a list in
    ``index [K]`` int64 names, and to 0 elsewhere: ``[T]`` bool, which are finite.
    """
