"""Statistics: one number for each block of each row, or for a whole row.

Sums are formed in float64, always in the same order: number i of a piece of 4,096 goes to lane i mod 16; each lane adds in
order; then the upper half of the lanes is added to the lower, four times; then the pieces of a block are added in order.

Letters: b rows of n numbers; blocks of B numbers, nb = ceil(n/B) of them per row, the last one shorter.
"""

from __future__ import annotations

from torch import Tensor

from grace.compute.dispatch import operation
from grace.kernels.blocks import block_roots, repeat_by_block
from grace.kernels.tensor_list import TensorList

__all__ = [
    "block_abs_max",
    "block_abs_mean",
    "block_norm",
    "block_sum",
    "cut_to_deviations",
    "root_mean_square",
    "root_mean_square_many",
    "square_sum",
]


def cut_to_deviations(rows: Tensor, block: int, most: float) -> Tensor:
    """``[b, n]``: the numbers, whose magnitudes are cut to ``most`` times the root of the mean square of their block."""
    n = rows.shape[1]
    deviations = block_norm(rows, block) / block_roots(n, block, rows)  # [b, nb]
    limit = repeat_by_block(deviations.mul_(most), n, block)
    return rows.clamp(-limit, limit)


@operation
def block_abs_max(rows: Tensor, block: int) -> Tensor:
    """``[b, n]`` -> ``[b, nb]``: the largest magnitude of each block; NaN if it holds a NaN."""


@operation
def block_abs_mean(rows: Tensor, block: int) -> Tensor:
    """``[b, n]`` -> float32 ``[b, nb]``: the mean magnitude of each block."""


@operation
def block_norm(rows: Tensor, block: int) -> Tensor:
    """``[b, n]`` -> float32 ``[b, nb]``: the Euclidean norm of each block, without overflow or underflow on the way."""


@operation
def block_sum(rows: Tensor, block: int) -> Tensor:
    """``[b, n]`` (any dtype) -> float64 ``[b, nb]``: the sum of each block."""


@operation
def square_sum(row: Tensor, memory: Tensor | None = None) -> float:
    """The sum of the squares of ``row [n] + memory``, float32, contiguous."""


@operation
def root_mean_square(row: Tensor, memory: Tensor | None = None) -> float:
    """The root of the mean square of ``row [n] + memory``, n >= 1, float32, contiguous."""


@operation
def root_mean_square_many(like: Tensor, many: TensorList) -> Tensor:
    """As :func:`root_mean_square` of each of T tensors plus its memory: float64 ``[T]``, on the device of ``like``."""
