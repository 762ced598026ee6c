"""Buckets between quantiles, and wires of what they hold.

A wire ``[b, w]`` of :func:`encode_quantiles` holds a row's means (float32 ``[q]``), then the numbers' buckets, packed.

Letters: b rows of n numbers; q buckets, of which z hold negative ones; W workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from grace.compute.dispatch import operation
from grace.kernels.packing import packed_bytes
from grace.kernels.tensor_list import TensorList

if TYPE_CHECKING:
    from grace.random import Stream

__all__ = [
    "encode_quantiles",
    "encode_quantiles_many",
    "quantile_buckets",
    "quantile_bytes",
    "sum_quantiles",
    "sum_quantiles_many",
]

BAD_MEAN = "field 'means' must be finite"


def bad_code(q: int) -> str:
    """The error message for a code that no bucket has."""
    return f"field 'codes' must be in [0, {q})"


def code_bits(q: int) -> int:
    """ceil(log2 q)"""
    return (q - 1).bit_length()


def quantile_bytes(n: int, q: int) -> int:
    """Bytes of the wire of n numbers."""
    return 4 * q + packed_bytes(n, code_bits(q))


@operation
def quantile_buckets(rows: Tensor, seen: Tensor, q: int, zero_edge: bool) -> tuple[Tensor, Tensor, Tensor]:
    """``[b, n]``, n >= 1 -> the buckets' means ``[b, q]`` (0 of an empty one), each number's bucket ``[b, n]``, z ``[b]``.

    Edge j = 1 ... q-1 is the number at place floor(j m / q) of ``seen [b, m]``, sorted: the row itself, or a sample of
    it. A number's bucket is how many edges are <= it. With ``zero_edge``, the edge nearest to zero is moved to zero in
    rows with negative and other numbers, so that no bucket mixes signs. Means are taken in float64, over the whole row,
    whose numbers are added up in order.
    """


@operation
def encode_quantiles(
    rows: Tensor,
    q: int,
    zero_edge: bool,
    seen: int,
    rng: Stream,
    memory: Tensor | None = None,
    rest: Tensor | None = None,
) -> tuple[Tensor, bool]:
    """``p = rows + memory`` -> (wire ``[b, w]`` uint8, whether p was finite).

    The wire holds the :func:`quantile_buckets` of p, whose edges are those of so many columns: all n, or the stream's subset.
    ``rest``, which may be ``rows``, becomes p minus the means of its numbers' buckets, and at most the largest number. If p is
    not finite, wire and rest mean nothing.

    Rows, memory and rest are float32 ``[b, n]``, contiguous, n >= 1; q is 2 to 256, ``seen`` 1 to n.
    """


@operation
def sum_quantiles(received: Sequence[Tensor], out: Tensor, q: int, weight: float, *, add: bool = False) -> None:
    """Sets (adds to, with ``add``) ``out [b, n]``: weight times the sum of what the wires ``[b, w]`` say, in order.

    Raises:
        PayloadError: a length, mean or code that no sender writes; ``out`` is then undefined.
    """


@operation
def encode_quantiles_many(
    message: Tensor, many: TensorList, q: int, zero_edge: bool, seen: tuple[int, ...], step: int
) -> Tensor:
    """As :func:`encode_quantiles` for each of T tensors, into its place in ``message [s]`` uint8, with the stream of the
    tensor at this step: ``[T]`` bool, which of them were finite. ``seen``: of each row.
    """


@operation
def sum_quantiles_many(rows: Tensor, many: TensorList, q: int, weight: float) -> Tensor:
    """As :func:`sum_quantiles` for each of T tensors, from its places in ``rows [W, s]`` uint8, of all senders, into x:
    ``[T]`` bool, which had wires such as a sender writes.
    """
