"""Tails as Triton kernels."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import launch
from grace.kernels.blocks import block_count
from grace.kernels.statistics.triton import join_pieces, largest_of_many
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.triton import numbers_of, tensor_of, tile_of, wire_of
from grace.kernels.triton import halves, load_sum

_PIECE, _LANES, _ROWS = 4096, 16, 16


@triton.jit
def _tail_sums(
    table, programs, like, bounds, out, plane, pieces, turns,
    EVEN: tl.constexpr, HAS_MEMORY: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """``out [2, plane]`` float64: of each piece of 4,096 numbers how many exceed ``bounds [T]`` float32, and their sum."""
    row, tile = tile_of(programs)
    x, _start = numbers_of(table, row, like, EVEN)
    e = tensor_of(table, row, 1, EVEN)
    _place, n = wire_of(table, row)
    bound = tl.load(bounds + row)
    j = tile * ROWS + tl.arange(0, ROWS)
    i = j[:, None] * 4096 + tl.arange(0, 16)[None, :]
    count = tl.zeros((ROWS, 16), tl.float64)
    total = tl.zeros((ROWS, 16), tl.float64)
    for t in range(turns):
        at = i + 16 * t
        size = tl.abs(load_sum(x, e, at, at < n, HAS_MEMORY))
        above = (at < n) & (size > bound)
        count += above.to(tl.float64)
        total += tl.where(above, size, 0.0).to(tl.float64)
    at = out + row * pieces + j
    tl.store(at, halves(count, ROWS), j < pieces)
    tl.store(at + plane, halves(total, ROWS), j < pieces)


def tail_sums_many(bounds: Tensor, many: TensorList) -> Tensor:
    longest = max(many.sizes)
    pieces = block_count(longest, _PIECE)
    out = torch.empty(2, len(many) * pieces, dtype=torch.float64, device=many.device)
    tiles = many.tiles(_ROWS, block=longest, pieces=pieces)
    turns = block_count(min(longest, _PIECE), _LANES)
    launch(_tail_sums, (len(tiles),), many.table, tiles, many.like, bounds.float(), out, out.shape[1], pieces, turns,
           EVEN=many.even, HAS_MEMORY=many.memories is not None, ROWS=_ROWS)  # fmt: skip
    return join_pieces(out, pieces)


def tops_many(like: Tensor, many: TensorList) -> Tensor:
    return largest_of_many(many, max(many.sizes))
