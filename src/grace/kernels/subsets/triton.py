"""Taking and adding subsets as Triton kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE, check_rows, even_runs, launch
from grace.kernels.blocks import block_count
from grace.kernels.subsets import check_wires

if TYPE_CHECKING:
    from grace.random import Stream


@triton.jit(do_not_specialize=["left"])
def _take(rows, index, out, n, k, left, HAS_LEFT: tl.constexpr, TILE: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = j < k
    at = rows + row * n + tl.load(index + j, inside, 0)
    value = tl.load(at, inside, 0.0)
    tl.store(out + row * k + j, value, inside)
    if HAS_LEFT:
        tl.store(at, value * left, inside)


@triton.jit(do_not_specialize=["weight"])
def _add(wires, index, out, W, stride, row_stride, n, k, weight, TILE: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = j < k
    at = out + row * n + tl.load(index + j, inside, 0)
    total = tl.load(at, inside, 0.0)
    base = (wires + row * row_stride).to(tl.pointer_type(tl.float32))
    for _ in range(W):
        total += tl.load(base + j, inside, 0.0) * weight
        base += stride
    tl.store(at, total, inside)


def take_subset(rows: Tensor, k: int, rng: Stream, left: float | None = None) -> Tensor:
    check_rows(rows=rows)
    b, n = rows.shape
    index = rng.subset(n, k, rows.device)
    out = rows.new_empty(b, k)
    launch(_take, (block_count(k, TILE), b), rows, index, out, n, k, 0.0 if left is None else left,
           HAS_LEFT=left is not None, TILE=TILE)  # fmt: skip
    return out


def add_subset(received: Sequence[Tensor], out: Tensor, weight: float, rng: Stream) -> None:
    (b, n), k = out.shape, check_wires(received, out)
    check_rows(out=out)
    index = rng.subset(n, k, out.device)
    aligned = [w if w.stride(-1) == 1 else w.contiguous() for w in received] if k else []
    for run in even_runs([w.view(torch.uint8) for w in aligned], b, 4 * k):
        launch(_add, (block_count(k, TILE), b), run.first, index, out, run.count, run.stride // 4, run.row, n, k, weight,
               TILE=TILE)  # fmt: skip
