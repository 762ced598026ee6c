"""Random rotations of blocks: rht, drive, eden and thc.

Letters: h the length of a block; H the orthonormal Hadamard transform, D random signs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from grace.kernels import hadamard, unpack
from grace.random import Stream


def rotate(rows: Tensor, shared: Stream, block: int, rounds: int = 1) -> Tensor:
    """``R x = H D x`` for each row ``[b, n]``, as often as there are rounds, with other signs in each. A new tensor."""
    for i in range(rounds):
        rows = hadamard(rows * draw_signs(rows, shared.fork(i)), block)
    return rows


def rotate_back(rows: Tensor, shared: Stream, block: int, rounds: int = 1) -> Tensor:
    """The inverse of :func:`rotate`: ``D H y``. A new tensor."""
    for i in reversed(range(rounds)):
        rows = hadamard(rows, block).mul_(draw_signs(rows, shared.fork(i)))
    return rows


def draw_signs(rows: Tensor, stream: Stream) -> Tensor:
    """D ``[1, n]``: +1 or -1 for each position, from the bits of the stream's words; the same for all rows."""
    n = rows.shape[1]
    words = stream.words(math.ceil(n / 64), rows.device).view(torch.uint8)
    return unpack(words.view(1, -1), 1, n).to(rows.dtype).mul_(-2).add_(1)
