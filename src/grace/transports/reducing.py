"""Reductions that the ranks make themselves, in rank order, for dtypes that the network below cannot reduce."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grace.collectives import ReduceOp


def reduce_rows(rows: Tensor, op: ReduceOp, out: Tensor | None = None) -> Tensor:
    """``[W, ...]`` over ranks, in their order; sums of 16-bit floats are made in float32. Into ``out``, if it is given."""
    if op == "max":
        return torch.amax(rows, 0, out=out)
    narrow = rows.dtype in (torch.float16, torch.bfloat16)
    if narrow:
        total = rows[0].float()
    else:
        total = rows[0].clone() if out is None else out.copy_(rows[0])
    for row in rows[1:]:
        total += row
    if not narrow:
        return total
    return total.to(rows.dtype) if out is None else out.copy_(total)


def reduce_in_parts_(
    out: Tensor,
    op: ReduceOp,
    world: int,
    all_to_all: Callable[[Tensor], Tensor],
    all_gather: Callable[[Tensor], Tensor],
) -> Tensor:
    """An all-reduce in place, of any shape: each rank reduces a part, and all gather the parts. A ring sends as much."""
    size = out.numel()
    rows = out.new_zeros(world, -(-size // world))
    rows.view(-1)[:size] = out.view(-1)
    chunk = reduce_rows(all_to_all(rows), op)
    return out.copy_(all_gather(chunk).view(-1)[:size].view(out.shape))
