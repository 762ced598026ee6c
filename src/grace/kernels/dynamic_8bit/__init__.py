"""Codes of 8 bits: a sign, and the nearest of 128 magnitudes, in units of the largest magnitude of a block.

A wire ``[b, w]`` holds a row's scales (float32 ``[nb]``), then a byte for each number: 128 for a minus, and the
position of the magnitude.

Letters: b rows of n numbers; blocks of B numbers, nb = ceil(n/B) of them per row, the last one shorter; W workers.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from grace.compute.dispatch import operation
from grace.kernels.blocks import block_count
from grace.kernels.dynamic_8bit.book import Codebook
from grace.kernels.tensor_list import TensorList

__all__ = [
    "Codebook",
    "codebook_bytes",
    "encode_codebook",
    "encode_codebook_many",
    "sum_codebook",
    "sum_codebook_many",
]

SIGN = 0x80  # alone it is minus zero, which no sender writes
BAD_SCALE = "field 'scales' must be finite and not negative"
BAD_CODE = f"field 'codes' must not be {SIGN}, a minus zero"


def codebook_bytes(n: int, block: int) -> int:
    """Bytes of the wire of n numbers."""
    return n + 4 * block_count(n, block)


@operation
def encode_codebook(
    rows: Tensor, book: Codebook, block: int, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, bool]:
    """``p = rows + memory`` -> (wire ``[b, w]`` uint8, whether p was finite).

    Number i becomes the magnitude nearest to ``|p_i| / N``, at most 1, with its sign; of two equally near ones it becomes the
    smaller. N is the largest magnitude of its block, 0 where that is below 2**-126. ``rest``, which may be ``rows``, becomes p
    minus what the wire says. If p is not finite, wire and rest mean nothing.

    Rows, memory and rest are float32 ``[b, n]``, contiguous; block >= 1.
    """


@operation
def sum_codebook(
    received: Sequence[Tensor], out: Tensor, book: Codebook, block: int, weight: float, *, add: bool = False
) -> None:
    """Sets (adds to, with ``add``) ``out [b, n]``: weight times the sum of what the wires ``[b, w]`` say, in order.

    Raises:
        PayloadError: a length, scale or code that no sender writes; ``out`` is then undefined.
    """


@operation
def encode_codebook_many(message: Tensor, many: TensorList, book: Codebook, block: int) -> Tensor:
    """As :func:`encode_codebook` for each tensor, into its place in ``message [s]`` uint8: ``[T]`` bool, which were finite."""


@operation
def sum_codebook_many(rows: Tensor, many: TensorList, book: Codebook, block: int, weight: float) -> Tensor:
    """As :func:`sum_codebook` for each tensor, from its places in ``rows [W, s]`` uint8: ``[T]`` bool, which had wires such as
    a sender writes.
    """
