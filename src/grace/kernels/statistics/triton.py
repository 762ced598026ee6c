"""The statistics as Triton kernels, and what encoders of other families take from them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grace.compute.launching import launch, power_of_two
from grace.kernels.blocks import block_count, block_sizes, clip_block
from grace.kernels.triton import block_max_kernel, count_kernel, join_pieces_kernel, piece_sum_kernel

ABS, SQUARE, UPPER, LOWER = range(4)  # what is added up
_PIECE, _LANES, _ROWS = 4096, 16, 16
_CHUNK = 1024


def block_abs_max(rows: Tensor, block: int) -> Any:
    return largest(rows, None, block) if _plain(rows) else NotImplemented


def block_abs_mean(rows: Tensor, block: int) -> Any:
    return mean_magnitude(rows, None, block) if _plain(rows) else NotImplemented


def block_norm(rows: Tensor, block: int) -> Any:
    return euclidean_norm(rows, None, block) if _plain(rows) else NotImplemented


def largest(rows: Tensor, memory: Tensor | None, block: int) -> Tensor:
    """float32 ``[b, nb]``: the largest magnitude of each block of ``rows + memory``; an inf or NaN is above all others."""
    b, n = rows.shape
    block = clip_block(rows, block)
    top = torch.zeros(b, block_count(n, block), dtype=torch.int32, device=rows.device)
    launch(block_max_kernel, *_by_chunks(rows, top, block), rows, memory, top, n, block, top.shape[1],
           HAS_MEMORY=memory is not None, **_shape(block))  # fmt: skip
    return top.view(torch.float32)


def how_many(rows: Tensor, memory: Tensor | None, block: int, tau: float) -> Tensor:
    """float64 ``[b, nb]``: how many numbers of each block of ``rows + memory`` are at least tau."""
    b, n = rows.shape
    block = clip_block(rows, block)
    out = torch.zeros(b, block_count(n, block), dtype=torch.int32, device=rows.device)
    launch(count_kernel, *_by_chunks(rows, out, block), rows, memory, out, n, block, out.shape[1], tau,
           HAS_MEMORY=memory is not None, **_shape(block))  # fmt: skip
    return out.double()


def mean_magnitude(rows: Tensor, memory: Tensor | None, block: int) -> Tensor:
    """float32 ``[b, nb]``: the mean magnitude of each block of ``rows + memory``."""
    sizes = block_sizes(rows.shape[1], block, rows, torch.float64)
    return (ordered_sum(rows, memory, block, ABS) / sizes).float()


def euclidean_norm(rows: Tensor, memory: Tensor | None, block: int) -> Tensor:
    """float32 ``[b, nb]``: the Euclidean norm of each block of ``rows + memory``."""
    squares = ordered_sum(rows, memory, block, SQUARE)
    return squares.sqrt_().clamp_max_(torch.finfo(torch.float32).max).float()


def ordered_sum(rows: Tensor, memory: Tensor | None, block: int, kind: int, tau: float = 0.0) -> Tensor:
    """float64 ``[b, nb]``: the sums of what ``kind`` says of ``rows + memory``, in the order of this family."""
    b, n = rows.shape
    block = clip_block(rows, block)
    nb, pieces = block_count(n, block), block_count(block, _PIECE)
    out = torch.empty(b, nb * pieces, dtype=torch.float64, device=rows.device)
    turns = block_count(min(block, _PIECE), _LANES)
    launch(piece_sum_kernel, (block_count(nb * pieces, _ROWS), b), rows, memory, out, n, block, pieces, nb * pieces, turns,
           tau, KIND=kind, HAS_MEMORY=memory is not None, ROWS=_ROWS)  # fmt: skip
    if pieces == 1:
        return out
    total = torch.empty(b, nb, dtype=torch.float64, device=rows.device)
    launch(join_pieces_kernel, (block_count(b * nb, _ROWS),), out, total, b * nb, pieces, ROWS=_ROWS)
    return total


def _plain(rows: Tensor) -> bool:
    return rows.dtype is torch.float32 and rows.is_contiguous() and rows.numel() > 0


def _shape(block: int) -> dict[str, int]:
    chunk = min(_CHUNK, power_of_two(block))
    return {"ROWS": _CHUNK // chunk, "CHUNK": chunk}


def _by_chunks(rows: Tensor, out: Tensor, block: int) -> tuple[tuple[int, int, int]]:
    shape = _shape(block)
    grid = block_count(out.shape[1], shape["ROWS"]), rows.shape[0], block_count(block, shape["CHUNK"])
    return (grid if rows.numel() else (0, 0, 0),)
