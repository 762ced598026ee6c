"""Codes of one bit for each number: signs with the mean magnitude of their block, two means, or bare votes.

A wire ``[b, w]`` holds what the bits of each block stand for (float32 ``[nb]`` or twice that; nothing for votes), then
the bits, packed. Votes may also abstain: then they are digits 0, 1, 2 in base 3, five to a byte.

Letters: b rows of n numbers; blocks of B numbers, nb = ceil(n/B) of them per row, the last one shorter; W workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from torch import Tensor

from grace.compute.dispatch import operation
from grace.kernels.packing import packed_bytes, packed_trits_bytes
from grace.kernels.tensor_list import TensorList

__all__ = [
    "Zeros",
    "encode_positive_many",
    "encode_signs",
    "encode_signs_many",
    "encode_two_means",
    "encode_two_means_many",
    "encode_votes",
    "encode_votes_many",
    "sum_signs",
    "sum_signs_many",
    "sum_two_means",
    "sum_two_means_many",
    "sum_votes",
    "take_majority",
    "take_majority_many",
    "votes_bytes",
]

Zeros: TypeAlias = Literal["parity", "plus", "abstain"]


def votes_bytes(n: int, zero: Zeros) -> int:
    """Bytes of the wire of n numbers' votes."""
    return packed_trits_bytes(n) if zero == "abstain" else packed_bytes(n, 1)


@operation
def encode_signs(
    rows: Tensor, block: int, phase: int, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, bool]:
    """``p = rows + memory`` -> (wire ``[b, w]`` uint8, whether p was finite).

    Number i of p becomes ``sgn(p_i) |p|_1 / B``, with the sum over its block; a zero at position i of its row is positive
    if i + ``phase`` is odd. ``rest``, which may be ``rows``, becomes p minus what the wire says. If p is not finite, wire
    and rest mean nothing.

    Rows, memory and rest are float32 ``[b, n]``, contiguous; block >= 1.
    """


@operation
def sum_signs(received: Sequence[Tensor], out: Tensor, block: int, weight: float, *, add: bool = False) -> None:
    """Sets (adds to, with ``add``) ``out [b, n]``: weight times the sum of what the wires ``[b, w]`` say, in order.

    Raises:
        PayloadError: a length or scale that no sender writes; ``out`` is then undefined.
    """


@operation
def encode_two_means(
    rows: Tensor, tau: float, block: int, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, bool]:
    """As :func:`encode_signs`, but number i becomes the mean of the numbers of its block on its side of the threshold; the
    threshold belongs to the upper side: ``p >= tau``.
    """


@operation
def sum_two_means(received: Sequence[Tensor], out: Tensor, block: int, weight: float, *, add: bool = False) -> None:
    """As :func:`sum_signs`, for the wires of :func:`encode_two_means`."""


@operation
def encode_votes(
    rows: Tensor, zero: Zeros, phase: int, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, bool]:
    """As :func:`encode_signs`, but without scales: number i becomes 1 or -1. A zero counts as it does there ("parity"), as
    1 ("plus"), or it becomes 0 ("abstain").
    """


@operation
def sum_votes(received: Sequence[Tensor], out: Tensor, zero: Zeros, weight: float, *, add: bool = False) -> None:
    """As :func:`sum_signs`, for the wires of :func:`encode_votes`."""


@operation
def take_majority(received: Sequence[Tensor], out: Tensor, zero: Zeros, weight: float) -> None:
    """Sets ``out [b, n]`` to the sign of weight times the sum of the votes: -1, 0 or 1; a tie is 0.

    Raises:
        PayloadError: a length or vote that no sender writes; ``out`` is then undefined.
    """


@operation
def encode_signs_many(message: Tensor, many: TensorList, block: int, phase: int) -> Tensor:
    """As :func:`encode_signs` for each tensor, into its place in ``message [s]`` uint8: ``[T]`` bool, which were finite."""


@operation
def encode_positive_many(message: Tensor, many: TensorList) -> Tensor:
    """As :func:`encode_signs_many`, in one block for each row: but no zero counts as positive, and a scale below 2**-126 is
    0, which leaves the numbers as they are.
    """


@operation
def encode_votes_many(message: Tensor, many: TensorList, zero: Zeros, phase: int) -> Tensor:
    """As :func:`encode_votes` for each tensor, into its place in ``message [s]`` uint8: ``[T]`` bool, which were finite."""


@operation
def encode_two_means_many(message: Tensor, many: TensorList, tau: float, block: int) -> Tensor:
    """As :func:`encode_two_means` for each tensor, into its place in ``message [s]`` uint8: ``[T]`` bool, which were
    finite.
    """


@operation
def sum_two_means_many(rows: Tensor, many: TensorList, block: int, weight: float) -> Tensor:
    """As :func:`sum_two_means` for each tensor, from its places in ``rows [W, s]`` uint8: ``[T]`` bool, which had wires such
    as a sender writes.
    """


@operation
def sum_signs_many(rows: Tensor, many: TensorList, block: int, weight: float) -> Tensor:
    """As :func:`sum_signs` for each tensor, from its places in ``rows [W, s]`` uint8: ``[T]`` bool, which had wires such as a
    sender writes.
    """


@operation
def take_majority_many(rows: Tensor, many: TensorList, zero: Zeros, weight: float) -> Tensor:
    """As :func:`take_majority` for each tensor, from its places in ``rows [W, s]`` uint8: ``[T]`` bool, which had wires such
    as a sender writes.
    """
