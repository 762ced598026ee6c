"""The specification of tails, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from grace.kernels.blocks import runs_of_pieces
from grace.kernels.statistics import block_sum
from grace.kernels.tensor_list import TensorList

_LARGEST = torch.finfo(torch.float32).max
_PIECE = 4096  # of ordered sums


def tail_sum(row: Tensor, bound: float) -> tuple[int, float]:
    count, total = 0, 0.0
    for run in runs_of_pieces(row.numel(), _PIECE):
        kept = row[run].abs()
        if bound >= 0:
            functional.threshold(kept, min(bound, _LARGEST), 0.0, inplace=True)
            count += int(kept.count_nonzero())
        for piece in block_sum(kept[None], _PIECE)[0].tolist():
            total += piece
    return (row.numel() if bound < 0 else count), total


def tail_sums_many(bounds: Tensor, many: TensorList) -> Tensor:
    sums = [tail_sum(row, bound) for row, bound in zip(_sums(many), bounds.tolist(), strict=True)]
    return torch.tensor(sums, dtype=torch.float64, device=bounds.device).t().contiguous()


def tops_many(like: Tensor, many: TensorList) -> Tensor:
    return torch.stack([row.abs().max() for row in _sums(many)]).to(like.device)


def _sums(many: TensorList) -> list[Tensor]:
    memories: Sequence[Tensor | None] = many.memories or [None] * len(many.xs)
    return [x[0].float() if e is None else x[0] + e[0] for x, e in zip(many.xs, memories, strict=True)]
