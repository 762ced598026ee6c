"""Rows in blocks: b rows of n numbers; blocks of B numbers, nb = ceil(n/B) of them per row, the last one shorter."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from grace.compute.launching import MOST_PER_BLOCK

__all__ = ["block_count", "block_roots", "block_sizes", "passes_with_largest", "repeat_by_block"]

_LEAST, _PARTS = 8, 16  # pieces of a run, and runs at most


def block_count(n: int, block: int) -> int:
    """Number of blocks that cover n numbers."""
    return math.ceil(n / block)


def runs_of_pieces(n: int, piece: int) -> Iterator[slice]:
    """Runs of whole pieces of n numbers, at most sixteen of them, none shorter than eight pieces but the last: a row that is
    worked on run by run needs little memory besides.
    """
    step = piece * max(_LEAST, block_count(block_count(n, piece), _PARTS))
    for start in range(0, n, step):
        yield slice(start, start + step)


def fits_tile(block: int) -> bool:
    """True if programs of a GPU take whole blocks of this size: then a kernel finds itself what is largest in them."""
    return block <= MOST_PER_BLOCK and block & (block - 1) == 0


def passes_with_largest(block: int) -> int:
    """Number of times that Triton kernels read numbers if they first have to know the largest of each block."""
    return 1 if fits_tile(block) else 2


def block_sizes(n: int, block: int, like: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """``[nb]``: the sizes of the blocks of n numbers."""
    sizes = torch.full((block_count(n, block),), float(block), dtype=dtype, device=like.device)
    if n % block:
        sizes[-1:].fill_(n % block)  # an assignment would copy the number from the host
    return sizes


def block_roots(n: int, block: int, like: Tensor) -> Tensor:
    """float32 ``[nb]``: the square roots of the sizes of the blocks of n numbers, rounded to the nearest float32.

    Python's, since torch's root of a float32 is off by a bit on some processors.
    """
    roots = torch.full((block_count(n, block),), math.sqrt(block), dtype=torch.float32, device=like.device)
    if n % block:
        roots[-1:].fill_(math.sqrt(n % block))
    return roots


def repeat_by_block(scales: Tensor, n: int, block: int) -> Tensor:
    """``[b, nb]`` -> ``[b, n]``: each block's number at each of its positions."""
    return scales.repeat_interleave(max(1, min(block, n)), dim=1)[:, :n]


def clip_block(rows: Tensor, block: int) -> int:
    """The size that cuts these rows ``[b, n]`` into the same blocks, without padding beyond a row's end."""
    return max(1, min(block, rows.shape[1]))


def split_blocks(rows: Tensor, block: int) -> Tensor:
    """``[b, n]`` -> ``[b, nb, B]``, zeros after the end (neutral for magnitudes and sums)."""
    b, n = rows.shape
    count = block_count(n, block)
    return pad(rows, count * block).view(b, count, block)


def pad(rows: Tensor, n: int) -> Tensor:
    """``rows [b, <= n]`` with zeros up to n columns, contiguous."""
    if rows.shape[1] == n:
        return rows.contiguous()
    out = rows.new_zeros(rows.shape[0], n)
    out[:, : rows.shape[1]] = rows
    return out
