"""Stochastic rounding to powers of two, in codes of a sign and an octave.

A wire ``[b, w]`` holds a row's exponents (int8 ``[nb]``: the largest magnitude of a block is at most 2**e; none for 9 bits),
then its codes, packed.

Letters: b rows of n numbers; blocks of B numbers, nb = ceil(n/B) of them per row, the last one shorter; W workers.
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

__all__ = ["encode_powers", "encode_powers_many", "powers_bytes", "sum_powers", "sum_powers_many"]

BAD_CODE = "field 'codes' must be in the range of their block"
BAD_HEAD = "field 'exponents' puts a code outside the range of float32"


def powers_bytes(n: int, bits: int, block: int) -> int:
    """Bytes of the wire of n numbers."""
    return packed_bytes(n, bits) + (block_count(n, block) if bits != 9 else 0)


@operation
def encode_powers(
    rows: Tensor, bits: int, block: int, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, bool]:
    """``p = rows + memory`` -> (wire ``[b, w]`` uint8, whether p was finite).

    ``|p_i| = 2**e (1 + m)`` becomes ``2**(e + 1)`` if ``m > u_i``, else ``2**e``. Below its block's range it becomes the
    range's lowest power if it exceeds u_i times that, else 0. u_i is number i of the stream, counted over all rows. ``rest``,
    which may be ``rows``, becomes p minus what the wire says. If p is not finite, wire and rest mean nothing.

    Rows, memory and rest are float32 ``[b, n]``, contiguous; bits is 4, 8 or 9, block >= 1.
    """


@operation
def sum_powers(
    received: Sequence[Tensor], out: Tensor, bits: int, block: int, weight: float, *, add: bool = False
) -> None:
    """Sets (adds to, with ``add``) ``out [b, n]``: weight times the sum of what the wires ``[b, w]`` say, in order.

    Raises:
        PayloadError: a length, exponent or code that no sender writes; ``out`` is then undefined.
    """


@operation
def encode_powers_many(message: Tensor, many: TensorList, bits: int, block: int, step: int) -> Tensor:
    """As :func:`encode_powers` for each tensor, into its place in ``message [s]`` uint8, with its stream at this step: ``[T]``
    bool, which were finite.
    """


@operation
def sum_powers_many(rows: Tensor, many: TensorList, bits: int, block: int, weight: float) -> Tensor:
    """As :func:`sum_powers` for each tensor, from its places in ``rows [W, s]`` uint8: ``[T]`` bool, which had wires such as a
    sender writes.
    """
