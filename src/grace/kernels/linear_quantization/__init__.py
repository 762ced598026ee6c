"""Fixed-point numbers of 2 to 8 bits, whose unit d is a share of the largest magnitude of a block.

A wire ``[b, w]`` holds a row's units (float32 ``[nb]``), then codes + q + 1, packed.

Letters: b rows of n numbers; blocks of B numbers, nb = ceil(n/B) of them per row, the last one shorter; codes go from -least
to q = 2**(bits - 1) - 1; W workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from grace.compute.dispatch import operation
from grace.kernels.blocks import block_count
from grace.kernels.packing import packed_bytes
from grace.kernels.tensor_list import TensorList

if TYPE_CHECKING:
    from grace.random import Stream

__all__ = ["encode_fixed", "encode_fixed_many", "fixed_bytes", "sum_fixed", "sum_fixed_many"]

BAD_UNIT = "field 'units' must be finite and not negative, and small enough for its codes"


def bad_code(bits: int) -> str:
    """The error message for a code of -q - 1, which no encoder writes."""
    return f"{BAD_UNIT}, which must be in [1, {(1 << bits) - 1}]"


def fixed_bytes(n: int, bits: int, block: int) -> int:
    """Bytes of the wire of n numbers."""
    return 4 * block_count(n, block) + packed_bytes(n, bits)


@operation
def encode_fixed(
    rows: Tensor,
    bits: int,
    block: int,
    clip: float,
    shrink: float,
    rng: Stream | None,
    memory: Tensor | None = None,
    rest: Tensor | None = None,
) -> tuple[Tensor, bool]:
    """``p = rows + memory`` -> (wire ``[b, w]`` uint8, whether p was finite).

    ``d = clip max|p| / q`` of a block, 0 where that is below 2**-126, and at most what keeps all numbers finite. Number i
    becomes ``p_i / d``, clipped to [-least, q], least = q where clip is 1 and else q + 1, and rounded: up or down at random,
    by ``(lane i + 1/2) / 2**16`` of the stream, counted over all rows; without one to the nearest, ties to even. What travels
    is ``d / shrink``. ``rest``, which may be ``rows``, becomes p minus what the wire says. If p is not finite, wire and rest
    mean nothing.

    Rows, memory and rest are float32 ``[b, n]``, contiguous; bits is 2 to 8, block >= 1, clip in (0, 1], shrink >= 1.
    """


@operation
def sum_fixed(
    received: Sequence[Tensor], out: Tensor, bits: int, block: int, clip: float, weight: float, *, add: bool = False
) -> None:
    """Sets (adds to, with ``add``) ``out [b, n]``: weight times the sum of what the wires ``[b, w]`` say, in order.

    Raises:
        PayloadError: a length, unit or code that no sender writes; ``out`` is then undefined.
    """


@operation
def encode_fixed_many(
    message: Tensor,
    many: TensorList,
    bits: int,
    block: int,
    clip: float,
    shrink: Callable[[int], float],
    step: int | None,
) -> Tensor:
    """As :func:`encode_fixed` for each tensor, into its place in ``message [s]`` uint8, at random by its stream at this step,
    or to the nearest if there is none: ``[T]`` bool, which were finite. ``shrink`` depends on a tensor's size.
    """


@operation
def sum_fixed_many(rows: Tensor, many: TensorList, bits: int, block: int, clip: float, weight: float) -> Tensor:
    """As :func:`sum_fixed` for each tensor, from its places in ``rows [W, s]`` uint8: ``[T]`` bool, which had wires such as a
    sender writes.
    """
