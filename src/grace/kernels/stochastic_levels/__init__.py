"""Numbers in units of a block's scale: stochastic rounding to s levels on each side of zero, or the nearest of a list.

A wire ``[b, w]`` of :func:`quantize` holds a row's norms (float32 ``[nb]``), then its codes + s, packed: base 3 for s = 1,
else as few bits as 2 s + 1 values need.

Letters: b rows of n numbers; blocks of B numbers, nb = ceil(n/B) of them per row, the last one shorter; W workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

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
    "block_divide",
    "dequantize_sum",
    "dequantize_sum_many",
    "nearest",
    "quantize",
    "quantize_many",
    "quantized_bytes",
    "stochastic_round",
]

MOST = torch.finfo(torch.float32).max * (1 - 2.0**-20)  # rounded factors chosen for this product do not overflow


def quantized_bytes(n: int, s: int, block: int) -> int:
    """Bytes of the wire of n numbers."""
    return 4 * block_count(n, block) + code_bytes(n, s)


@operation
def quantize(
    rows: Tensor,
    s: int,
    block: int,
    norm: Literal["linf", "l2"],
    shrink: float,
    rng: Stream,
    memory: Tensor | None = None,
    rest: Tensor | None = None,
) -> tuple[Tensor, bool]:
    """``p = rows + memory`` -> (wire ``[b, w]`` uint8, whether p was finite).

    Number i of p becomes ``floor(y)``, or one more if ``y - floor(y) > u_i``, with its sign; ``y = s |p_i| / N`` is rounded to
    a multiple of 2**-16 (and is s for N itself), N is the norm of its block, and u_i is 2**-16 times lane i of the stream,
    counted over all rows. What travels is ``shrink`` N, 0 where N < 2**-126. ``rest``, which may be ``rows``, becomes p minus
    what the wire says. If p is not finite, wire and rest mean nothing.

    Rows, memory and rest are float32 ``[b, n]``, contiguous; s is 1 to 32767, block >= 1.
    """


@operation
def dequantize_sum(
    received: Sequence[Tensor], out: Tensor, s: int, block: int, weight: float, *, add: bool = False
) -> None:
    """Sets (adds to, with ``add``) ``out [b, n]``: weight times the sum of what the wires ``[b, w]`` say, in order.

    Raises:
        PayloadError: a length, norm or code that no sender writes; ``out`` is then undefined.
    """


@operation
def quantize_many(
    message: Tensor,
    many: TensorList,
    s: int,
    block: int,
    norm: Literal["linf", "l2"],
    shrink: Callable[[int], float],
    step: int,
    clip: float = 0.0,
) -> Tensor:
    """As :func:`quantize` for each tensor, into its place in ``message [s]`` uint8, with its stream at this step: ``[T]``
    bool, which were finite. ``shrink`` depends on a tensor's size.

    ``clip``, of "linf" only: what is quantized are the sums as :func:`grace.kernels.cut_to_deviations` cuts them, unless it
    is 0; rests are those of the sums. If one is not finite, the wire is that of zeros.
    """


@operation
def dequantize_sum_many(rows: Tensor, many: TensorList, s: int, block: int, weight: float) -> Tensor:
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
