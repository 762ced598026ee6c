"""Random rotations of blocks in one or two rounds: rht.

Letters: h the length of a block; H the orthonormal Hadamard transform, D random signs.
"""

from __future__ import annotations

from torch import Tensor

from grace.kernels import rotate_blocks, rotate_blocks_back
from grace.random import Stream


def rotate(rows: Tensor, shared: Stream, block: int, rounds: int = 1) -> Tensor:
    """``R x = H D x`` for each row ``[b, n]``, as often as there are rounds, with other signs in each. A new tensor."""
    for i in range(rounds):
        rows = rotate_blocks(rows, block, shared.fork(i))
    return rows


def rotate_back(rows: Tensor, shared: Stream, block: int, rounds: int = 1) -> Tensor:
    """The inverse of :func:`rotate`: ``D H y``. A new tensor."""
    for i in reversed(range(rounds)):
        rows = rotate_blocks_back(rows, block, shared.fork(i))
    return rows
