"""Numbers in units of a block's scale: stochastic rounding to s levels on each side of zero, or the nearest of a list.

A wire ``[b, w]`` of :func:`quantize` holds a row's norms (float32 ``[nb]``), then its codes + s, packed: base 3 for s = 1,
else as few bits as 2 s + 1 values need.

Letters: b rows of n numbers; blocks of B numbers, nb = ceil(n/B) of them per row, the last one shorter; W workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from grace.compute.dispatch import operation
from grace.kernels.blocks import block_count
from grace.kernels.stochastic_levels.codes import code_bytes
from grace.kernels.tensor_list import TensorList

if TYPE_CHECKING:
    from grace.random import Stream

__all__ = [
    "MOST",
    "Levels",
    "block_divide",
    "dequantize_sum",
    "dequantize_sum_many",
    "nearest",
    "quantize",
    "quantize_many",
    "stochastic_round",
]

MOST = torch.finfo(torch.float32).max * (1 - 2.0**-20)  # rounded factors chosen for this product do not overflow


class Levels(NamedTuple):
    """Rounding to s levels on each side of zero, 1 to 32767, in units of the norm of a block of so many numbers, >= 1.

    shrink: what travels is as much smaller as makes the rounding a contraction.
    """

    s: int
    block: int
    norm: Literal["linf", "l2"] = "linf"
    shrink: bool = False

    def payload(self, n: int) -> int:
        """Bytes of the wire of n numbers."""
        return 4 * block_count(n, self.block) + code_bytes(n, self.s)

    def variance(self, n: int) -> float:
        """A bound on the variance of a block, in units of its squared norm, without ``shrink`` (QSGD, lemma 3.1; linf: of a
        uniform grid of step N/s).
        """
        B, s = min(n, self.block), self.s
        if self.norm == "l2":
            return min(B / s**2, math.sqrt(B) / s)
        return (math.sqrt(B) - 1) / 2 if s == 1 else min(B / (4 * s**2), (math.sqrt(B) - 1) / 2)

    def factor(self, n: int) -> float:
        """The share of its norm that travels of a block."""
        return 1 / (1 + self.variance(n)) if self.shrink else 1.0


@operation
def quantize(
    rows: Tensor, levels: Levels, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, bool]:
    """``p = rows + memory`` -> (wire ``[b, w]`` uint8, whether p was finite).

    Number i of p becomes ``floor(y)``, or one more if ``y - floor(y) > u_i``, with its sign; ``y = s |p_i| / N`` is rounded to
    a multiple of 2**-16 (and is s for N itself), N is the norm of its block, and u_i is 2**-16 times lane i of the stream,
    counted over all rows. What travels is ``levels.factor(n)`` N, 0 where N < 2**-126. ``rest``, which may be ``rows``,
    becomes p minus what the wire says. If p is not finite, wire and rest mean nothing.

    Rows, memory and rest are float32 ``[b, n]``, contiguous.
    """


@operation
def dequantize_sum(
    received: Sequence[Tensor], out: Tensor, levels: Levels, weight: float, *, add: bool = False
) -> None:
    """Sets (adds to, with ``add``) ``out [b, n]``: weight times the sum of what the wires ``[b, w]`` say, in order.

    Raises:
        PayloadError: a length, norm or code that no sender writes; ``out`` is then undefined.
    """


@operation
def quantize_many(message: Tensor, many: TensorList, levels: Levels, step: int, clip: float = 0.0) -> Tensor:
    """As :func:`quantize` for each tensor, into its place in ``message [s]`` uint8, with its stream at this step: ``[T]``
    bool, which were finite.

    ``clip``, of "linf" only: what is quantized are the sums as :func:`grace.kernels.cut_to_deviations` cuts them, unless it
    is 0; rests are those of the sums. If one is not finite, the wire is that of zeros.
    """


@operation
def dequantize_sum_many(rows: Tensor, many: TensorList, levels: Levels, weight: float) -> Tensor:
    """As :func:`dequantize_sum` for each tensor, from its places in ``rows [W, s]`` uint8: ``[T]`` bool, which had wires such
    as a sender writes.
    """


@operation
def block_divide(rows: Tensor, scale: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Rows ``[b, n]`` in units of their block's scale ``[b, nb]``, >= 0: (the scale, ``rows / scale``).

    A scale below 2**-126 becomes 0, and so do the numbers of its block.
    """


@operation
def nearest(values: Tensor, book: Tensor) -> Tensor:
    """``[b, n]`` -> ``[b, n]`` int64: the position of the nearest entry of the ascending ``book [m]``, the first of two
    equally near ones. The midpoints are rounded to float32.
    """


@operation
def stochastic_round(y: Tensor, u: Tensor) -> Tensor:
    """floor(y) + [u < y - floor(y)] for y >= 0; a y within 1e-6 max(1, y) of an integer never moves. One shape."""
