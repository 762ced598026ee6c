"""The statistics as Triton kernels, and what encoders of other families take from them."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import launch, power_of_two
from grace.kernels.blocks import block_count, block_sizes, clip_block
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.triton import numbers_of, tensor_of, tile_at, tile_of, wire_of
from grace.kernels.triton import (
    block_max_kernel,
    block_max_of,
    chunk_of,
    join_pieces_kernel,
    piece_sum_kernel,
    piece_sum_of,
)

ABS, SQUARE, SPLIT = range(3)  # what is added up; SPLIT: both sides of tau, and how many are on the upper one
_PIECE, _LANES = 4096, 16
_ROWS = 2  # pieces of a program, which is one warp: enough of them for all multiprocessors
_CHUNK, _LONG_CHUNK = 1024, 4096  # numbers of a program; of long blocks, where all programs write to one place


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
    launch(block_max_kernel, _by_chunks(rows, top, block), rows, memory, top, n, block, top.shape[1],
           HAS_MEMORY=memory is not None, **_shape(block))  # fmt: skip
    return top.view(torch.float32)


def mean_magnitude(rows: Tensor, memory: Tensor | None, block: int) -> Tensor:
    """float32 ``[b, nb]``: the mean magnitude of each block of ``rows + memory``."""
    sizes = block_sizes(rows.shape[1], block, rows, torch.float64)
    return (ordered_sums(rows, memory, block, ABS)[0] / sizes).float()


def euclidean_norm(rows: Tensor, memory: Tensor | None, block: int) -> Tensor:
    """float32 ``[b, nb]``: the Euclidean norm of each block of ``rows + memory``."""
    squares = ordered_sums(rows, memory, block, SQUARE)[0]
    return squares.sqrt_().clamp_max_(torch.finfo(torch.float32).max).float()


def ordered_sums(rows: Tensor, memory: Tensor | None, block: int, kind: int, tau: float = 0.0) -> Tensor:
    """float64 ``[1, b, nb]``, of SPLIT ``[3, b, nb]``: the sums of what ``kind`` says of ``rows + memory``, in the order of
    this family, by one pass.
    """
    b, n = rows.shape
    block = clip_block(rows, block)
    nb, pieces = block_count(n, block), block_count(block, _PIECE)
    out = torch.empty(_planes(kind), b, nb * pieces, dtype=torch.float64, device=rows.device)
    turns = block_count(min(block, _PIECE), _LANES)
    launch(piece_sum_kernel, (block_count(nb * pieces, _ROWS), b), rows, memory, out, b * nb * pieces, n, block, pieces,
           nb * pieces, turns, tau, KIND=kind, HAS_MEMORY=memory is not None, ROWS=_ROWS, num_warps=1)  # fmt: skip
    return join_pieces(out, pieces)


def _planes(kind: int) -> int:
    """Number of sums of each block."""
    return 3 if kind == SPLIT else 1


def join_pieces(sums: Tensor, pieces: int) -> Tensor:
    """``[..., nb pieces]`` float64 -> ``[..., nb]``: pieces added in their order."""
    if pieces == 1:
        return sums
    total = sums.new_empty(*sums.shape[:-1], sums.shape[-1] // pieces)
    count = total.numel()
    launch(join_pieces_kernel, (block_count(count, _ROWS),), sums, total, count, pieces, ROWS=_ROWS)
    return total


def two_means(rows: Tensor, memory: Tensor | None, block: int, tau: float) -> tuple[Tensor, Tensor]:
    """float32 ``[b, nb]`` twice: the means of the numbers of each block of ``rows + memory`` below tau, and of the others."""
    sizes = block_sizes(rows.shape[1], block, rows, torch.float64)
    return _means(ordered_sums(rows, memory, block, SPLIT, tau), sizes)


def _means(sums: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    upper, lower, count = sums
    return (lower / (sizes - count).clamp_min(1)).float(), (upper / count.clamp_min(1)).float()


# ---- of many tensors ------------------------------------------------------------------------------------------------
@triton.jit
def _sums_of(table, task, like, EVEN: tl.constexpr):
    """Addresses of a row's numbers, which are of like's type, and of what is added to them."""
    x, start = numbers_of(table, task, like, EVEN)
    return x + start, tensor_of(table, task, 1, EVEN) + start


@triton.jit
def _largest(
    table,
    programs,
    heads,
    like,
    top,
    block,
    EVEN: tl.constexpr,
    HAS_MEMORY: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    group, inner = chunk_of(block, CHUNK)
    task, tile = tile_at(programs, group)
    _place, n = wire_of(table, task)
    x, e = _sums_of(table, task, like, EVEN)
    k = tile * ROWS + tl.arange(0, ROWS)
    nb = (n + block - 1) // block
    block_max_of(x, e, top + tl.load(heads + task), tile - tile, k, inner, n, block, nb, HAS_MEMORY)


@triton.jit
def _piece_sums(
    table, programs, heads, like, out, plane, block, pieces, turns, tau,
    KIND: tl.constexpr, EVEN: tl.constexpr, HAS_MEMORY: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    task, tile = tile_of(programs)
    _place, n = wire_of(table, task)
    x, e = _sums_of(table, task, like, EVEN)
    j = tile * ROWS + tl.arange(0, ROWS)
    count = (n + block - 1) // block * pieces
    at = out + tl.load(heads + task) * pieces
    piece_sum_of(x, e, at, plane, tile - tile, j, n, block, pieces, count, turns, tau, KIND, HAS_MEMORY, ROWS)


def largest_of_many(many: TensorList, block: int, *, adds: bool = True) -> Tensor:
    """As :func:`largest`, for the blocks of all tensors side by side, float32 ``[blocks]``; without their memories unless
    ``adds``.
    """
    block = many.clip(block)
    top = torch.zeros(sum(many.counts(block)), dtype=torch.int32, device=many.device)
    shape = _shape(block)
    tiles = many.tiles(shape["ROWS"], block=block)
    grid = (len(tiles) * block_count(block, shape["CHUNK"]),)
    launch(_largest, grid, many.table, tiles, many.heads(block), many.like, top, block, EVEN=many.even,
           HAS_MEMORY=adds and many.memories is not None, **shape)  # fmt: skip
    return top.view(torch.float32)


def mean_magnitude_of_many(many: TensorList, block: int) -> Tensor:
    """As :func:`mean_magnitude`, for the blocks of all tensors side by side: float32 ``[blocks]``."""
    (sums,), sizes = ordered_sums_of_many(many, block, ABS), _sizes_of_many(many, block)
    return torch.div(sums, sizes, out=torch.empty_like(sums, dtype=torch.float32))


def two_means_of_many(many: TensorList, block: int, tau: float) -> tuple[Tensor, Tensor]:
    """As :func:`two_means`, for the blocks of all tensors side by side: float32 ``[blocks]`` twice."""
    return _means(ordered_sums_of_many(many, block, SPLIT, tau), _sizes_of_many(many, block))


def _sizes_of_many(many: TensorList, block: int) -> Tensor:
    """float64 ``[blocks]``: how long the blocks of all tensors are, side by side."""
    block = many.clip(block)

    def sizes() -> list[float]:
        return [min(block, n - begin) for n in many.sizes for begin in range(0, n, block)]

    return many.numbers(("sizes", block), sizes, torch.float64)


def euclidean_norm_of_many(many: TensorList, block: int) -> Tensor:
    """As :func:`euclidean_norm`, for the blocks of all tensors side by side: float32 ``[blocks]``."""
    squares = ordered_sums_of_many(many, block, SQUARE)[0]
    return squares.sqrt_().clamp_max_(torch.finfo(torch.float32).max).float()


def root_mean_square_many(like: Tensor, many: TensorList) -> Tensor:
    squares = ordered_sums_of_many(many, max(many.sizes), SQUARE)[0]
    return (squares / many.numbers("sizes", lambda: many.sizes, torch.float64)).sqrt_()


def ordered_sums_of_many(many: TensorList, block: int, kind: int, tau: float = 0.0) -> Tensor:
    """As :func:`ordered_sums`, for the blocks of all tensors side by side: float64 ``[1, blocks]`` or ``[3, blocks]``."""
    block = many.clip(block)
    pieces = block_count(block, _PIECE)
    count = sum(many.counts(block)) * pieces
    out = torch.empty(_planes(kind), count, dtype=torch.float64, device=many.device)
    tiles = many.tiles(_ROWS, block=block, pieces=pieces)
    turns = block_count(min(block, _PIECE), _LANES)
    launch(_piece_sums, (tiles.shape[0],), many.table, tiles, many.heads(block), many.like, out, count, block, pieces, turns,
           tau, KIND=kind, EVEN=many.even, HAS_MEMORY=many.memories is not None, ROWS=_ROWS, num_warps=1)  # fmt: skip
    return join_pieces(out, pieces)


# ---- shapes of launches ---------------------------------------------------------------------------------------------
def _plain(rows: Tensor) -> bool:
    return rows.dtype is torch.float32 and rows.is_contiguous() and rows.numel() > 0


def _shape(block: int) -> dict[str, int]:
    chunk = min(_LONG_CHUNK if block > 4 * _LONG_CHUNK else _CHUNK, power_of_two(block))
    return {"ROWS": max(1, _CHUNK // chunk), "CHUNK": chunk}


def _by_chunks(rows: Tensor, out: Tensor, block: int) -> tuple[int, int]:
    shape = _shape(block)
    grid = block_count(out.shape[1], shape["ROWS"]) * block_count(block, shape["CHUNK"]), rows.shape[0]
    return grid if rows.numel() else (0, 0)
