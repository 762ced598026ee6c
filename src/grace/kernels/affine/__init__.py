"""Codes of 2 to 8 bits in equal steps between the least and the largest number of a block.

A wire ``[b, w]`` holds the ranges of a row's blocks, the least number and the step of each (float32 ``[nb, 2]``), then the
codes, packed.

Letters: b rows of n numbers; blocks of B numbers, nb = ceil(n/B) of them per row, the last one shorter; codes go from 0 to
q = 2**bits - 1; W workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from grace.compute.dispatch import operation
from grace.kernels.blocks import block_count
from grace.kernels.packing import packed_bytes
from grace.kernels.tensor_list import TensorList

if TYPE_CHECKING:
    from grace.random import Stream

__all__ = ["affine_bytes", "encode_affine", "encode_affine_many", "sum_affine", "sum_affine_many"]

LARGEST = 2.0**126  # what is beyond counts as that: no difference of two overflows
WIDEST = 2.0**127 * (1 + 2.0**-20)  # q steps, rounded
BAD_RANGE = (
    "field 'ranges' must be finite: least numbers within 2**126 of 0, steps not negative, q of them at most 2**127"
)


def affine_bytes(n: int, bits: int, block: int) -> int:
    """Bytes of the wire of n numbers."""
    return 8 * block_count(n, block) + packed_bytes(n, bits)


@operation
def encode_affine(
    rows: Tensor, bits: int, block: int, rng: Stream | None, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, bool]:
    """``p = rows + memory`` -> (wire ``[b, w]`` uint8, whether p was finite).

    The range of a block: ``l = min p`` and ``d = (max p - l) / q``, 0 where that is below 2**-126; numbers beyond 2**126 count
    as that. Number i becomes ``y = (p_i - l) / d``, cut to [0, q] and rounded to a multiple of 2**-15, and then up or down at
    random, up if ``y - floor(y)`` exceeds 2**-16 times lane i of the stream, counted over all rows; without a stream to the
    nearest, ties up. ``rest``, which may be ``rows``, becomes p minus what the wire says, ``l + code d``. If p is not finite,
    wire and rest mean nothing.

    Rows, memory and rest are float32 ``[b, n]``, contiguous; bits is 2 to 8, block a power of two from 2 to 4096.
    """


@operation
def sum_affine(
    received: Sequence[Tensor], out: Tensor, bits: int, block: int, weight: float, *, add: bool = False
) -> None:
    """Sets (adds to, with ``add``) ``out [b, n]``: weight times the sum of what the wires ``[b, w]`` say, in order.

    Raises:
        PayloadError: a length or range that no sender writes; ``out`` is then undefined.
    """


@operation
def encode_affine_many(message: Tensor, many: TensorList, bits: int, block: int, step: int | None) -> Tensor:
    """As :func:`encode_affine` for each tensor, into its place in ``message [s]`` uint8, at random by its stream at this step,
    or to the nearest if there is none: ``[T]`` bool, which were finite.
    """


@operation
def sum_affine_many(rows: Tensor, many: TensorList, bits: int, block: int, weight: float) -> Tensor:
    """As :func:`sum_affine` for each tensor, from its places in ``rows [W, s]`` uint8: ``[T]`` bool, which had wires such as a
    sender writes.
    """
