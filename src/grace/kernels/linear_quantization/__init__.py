"""Fixed-point numbers of 2 to 8 bits, whose unit d is a share of the largest magnitude of a block.

A wire ``[b, w]`` holds a row's units (float32 ``[nb]``), then codes + q + 1, packed.

Letters: b rows of n numbers; blocks of B numbers, nb = ceil(n/B) of them per row, the last one shorter; codes go from -least
to q = 2**(bits - 1) - 1; W workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from grace.compute.dispatch import operation
from grace.kernels.blocks import block_count
from grace.kernels.packing import packed_bytes
from grace.kernels.tensor_list import TensorList

if TYPE_CHECKING:
    from grace.random import Stream

__all__ = ["FixedPoint", "encode_fixed", "encode_fixed_many", "sum_fixed", "sum_fixed_many"]

BAD_UNIT = "field 'units' must be finite and not negative, and small enough for its codes"


def bad_code(bits: int) -> str:
    """The error message for a code of -q - 1, which no encoder writes."""
    return f"{BAD_UNIT}, which must be in [1, {(1 << bits) - 1}]"


class FixedPoint(NamedTuple):
    """Codes of 2 to 8 bits in a unit that blocks of so many numbers share, >= 1.

    clip: the share of the largest magnitude that the codes cover, in (0, 1]. shrink: what travels is as much smaller as makes
    the rounding a contraction. nearest: round to the nearest code, ties to even, and not at random.
    """

    bits: int
    block: int
    clip: float = 1.0
    shrink: bool = False
    nearest: bool = False

    @property
    def q(self) -> int:
        """The largest positive code."""
        return (1 << (self.bits - 1)) - 1

    @property
    def least(self) -> int:
        """The magnitude of the least code."""
        return self.q + (self.clip < 1)

    def payload(self, n: int) -> int:
        """Bytes of the wire of n numbers."""
        return 4 * block_count(n, self.block) + packed_bytes(n, self.bits)

    def variance(self, n: int) -> float:
        """A bound on the variance of a block at random, in units of the squared norm of what was not clipped away."""
        B = min(n, self.block)
        grid = B / (4 * self.q**2)
        # a finer grid has no more variance than that of q = 1
        return grid if self.clip < 1 else min(grid, (math.sqrt(B) - 1) / 2)

    def divisor(self, n: int) -> float:
        """The number by which the unit of a block is divided before it travels."""
        return 1 + self.variance(n) if self.shrink else 1.0


@operation
def encode_fixed(
    rows: Tensor, code: FixedPoint, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, bool]:
    """``p = rows + memory`` -> (wire ``[b, w]`` uint8, whether p was finite).

    ``d = clip max|p| / q`` of a block, 0 where that is below 2**-126, and at most what keeps all numbers finite. Number i
    becomes ``p_i / d``, clipped to [-least, q], least = q where clip is 1 and else q + 1, and rounded: up or down at random,
    by ``(lane i + 1/2) / 2**16`` of the stream, counted over all rows; or to the nearest. What travels is d by
    ``code.divisor(n)``. ``rest``, which may be ``rows``, becomes p minus what the wire says. If p is not finite, wire and rest
    mean nothing.

    Rows, memory and rest are float32 ``[b, n]``, contiguous.
    """


@operation
def sum_fixed(received: Sequence[Tensor], out: Tensor, code: FixedPoint, weight: float, *, add: bool = False) -> None:
    """Sets (adds to, with ``add``) ``out [b, n]``: weight times the sum of what the wires ``[b, w]`` say, in order.

    Raises:
        PayloadError: a length, unit or code that no sender writes; ``out`` is then undefined.
    """


@operation
def encode_fixed_many(message: Tensor, many: TensorList, code: FixedPoint, step: int) -> Tensor:
    """As :func:`encode_fixed` for each tensor, into its place in ``message [s]`` uint8, with its stream at this step: ``[T]``
    bool, which were finite.
    """


@operation
def sum_fixed_many(rows: Tensor, many: TensorList, code: FixedPoint, weight: float) -> Tensor:
    """As :func:`sum_fixed` for each tensor, from its places in ``rows [W, s]`` uint8: ``[T]`` bool, which had wires such as a
    sender writes.
    """
