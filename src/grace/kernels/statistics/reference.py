"""The specification of the statistics, in plain torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from grace.compute.portable import square_root
from grace.kernels.blocks import block_sizes, clip_block, split_blocks
from grace.kernels.tensor_list import TensorList

_PIECE, _LANES = 4096, 16  # of ordered sums


def block_abs_max(rows: Tensor, block: int) -> Tensor:
    return split_blocks(rows.abs(), clip_block(rows, block)).amax(dim=2)


def block_abs_mean(rows: Tensor, block: int) -> Tensor:
    sizes = block_sizes(rows.shape[1], block, rows, torch.float64)
    return (ordered_sum(rows.abs().double(), block) / sizes).float()


def block_norm(rows: Tensor, block: int) -> Tensor:
    squares = ordered_sum(rows.double().square_(), block)
    return square_root(squares).clamp_max_(torch.finfo(torch.float32).max).float()


def block_sum(rows: Tensor, block: int) -> Tensor:
    return ordered_sum(rows.double(), block)


def square_sum(row: Tensor, memory: Tensor | None = None) -> float:
    n, total = row.numel(), 0.0
    for start in range(0, n, 32 * _PIECE):
        part = row[start : start + 32 * _PIECE]
        if memory is not None:
            part = part + memory[start : start + 32 * _PIECE]
        for piece in ordered_sum(part.double().square_()[None], _PIECE)[0].tolist():
            total += piece
    return total


def root_mean_square(row: Tensor, memory: Tensor | None = None) -> float:
    return math.sqrt(square_sum(row, memory) / row.numel())


def root_mean_square_many(like: Tensor, many: TensorList) -> Tensor:
    memories: Sequence[Tensor | None] = many.memories or [None] * len(many.xs)
    roots = [
        root_mean_square(x.float()[0], None if e is None else e[0]) for x, e in zip(many.xs, memories, strict=True)
    ]
    return torch.tensor(roots, dtype=torch.float64, device=like.device)


def ordered_sum(values: Tensor, block: int) -> Tensor:
    """float64 ``[b, n]`` -> ``[b, nb]``: the sum of each block, always in the same order.

    Number i of a piece of 4,096 goes to lane i mod 16; each lane adds in order; then the upper half of the lanes is added to
    the lower, four times; then the pieces of a block are added in order.
    """
    block = clip_block(values, block)
    parts = split_blocks(split_blocks(values, block).flatten(0, 1), min(block, _PIECE))  # [b nb, pieces, B]
    lanes = split_blocks(parts.flatten(0, 1), _LANES)  # [b nb pieces, T, 16]
    total = lanes[:, 0].clone()
    for t in range(1, lanes.shape[1]):
        total += lanes[:, t]
    for half in (8, 4, 2, 1):
        total = total[:, :half] + total[:, half : 2 * half]
    return total.view(parts.shape[:2]).cumsum(dim=1)[:, -1].view(values.shape[0], -1)
