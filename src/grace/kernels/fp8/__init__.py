"""Floats of 8 bits, in units of a scale that brings the largest magnitude of a block to the largest number of the format.

A wire ``[b, w]`` holds a row's scales (float32 ``[nb]``), then a byte for each number.

Letters: b rows of n numbers; blocks of B numbers, nb = ceil(n/B) of them per row, the last one shorter; F is the largest
number of a format, m its fraction bits, 2**least its smallest normal number; W workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from grace.compute.dispatch import operation
from grace.kernels.blocks import block_count
from grace.kernels.tensor_list import TensorList

if TYPE_CHECKING:
    from grace.random import Stream

__all__ = [
    "E4M3",
    "E5M2",
    "FloatFormat",
    "encode_floats",
    "encode_floats_many",
    "float_bytes",
    "sum_floats",
    "sum_floats_many",
]


class FloatFormat(NamedTuple):
    """A format of 8 bits: torch's dtype, F, m and least."""

    dtype: torch.dtype
    F: float
    m: int
    least: int


E4M3 = FloatFormat(torch.float8_e4m3fn, 448.0, 3, -6)
E5M2 = FloatFormat(torch.float8_e5m2, 57344.0, 2, -14)

BAD_CODE = "field 'codes' must be finite numbers"
BAD_SCALE = "field 'scales' must be finite and not negative, and small enough for its codes"


def float_bytes(n: int, block: int) -> int:
    """Bytes of the wire of n numbers."""
    return n + 4 * block_count(n, block)


@operation
def encode_floats(
    rows: Tensor,
    kind: FloatFormat,
    block: int,
    rng: Stream | None,
    memory: Tensor | None = None,
    rest: Tensor | None = None,
) -> tuple[Tensor, bool]:
    """``p = rows + memory`` -> (wire ``[b, w]`` uint8, whether p was finite).

    Number i becomes the number of the format nearest to ``p_i / s``, of two equally near ones the even one; with ``rng`` it
    is rounded up or down at random, by ``(lane i + 1/2) / 2**16`` of the stream, counted over all rows. ``s = max |p| / F`` of
    its block, 0 where that is below 2**-126. ``rest``, which may be ``rows``, becomes p minus what the wire says. If p is not
    finite, wire and rest mean nothing.

    Rows, memory and rest are float32 ``[b, n]``, contiguous; block >= 1.
    """


@operation
def sum_floats(
    received: Sequence[Tensor], out: Tensor, kind: FloatFormat, block: int, weight: float, *, add: bool = False
) -> None:
    """Sets (adds to, with ``add``) ``out [b, n]``: weight times the sum of what the wires ``[b, w]`` say, in order.

    Raises:
        PayloadError: a length, scale or code that no sender writes; ``out`` is then undefined.
    """


@operation
def encode_floats_many(message: Tensor, many: TensorList, kind: FloatFormat, block: int, step: int | None) -> Tensor:
    """As :func:`encode_floats` for each tensor, into its place in ``message [s]`` uint8, at random by its stream at this step,
    or to the nearest if there is none: ``[T]`` bool, which were finite.
    """


@operation
def sum_floats_many(rows: Tensor, many: TensorList, kind: FloatFormat, block: int, weight: float) -> Tensor:
    """As :func:`sum_floats` for each tensor, from its places in ``rows [W, s]`` uint8: ``[T]`` bool, which had wires such as a
    sender writes.
    """
