"""Thin factors as Triton kernels: products with a matrix, what is left of it, and the mean.

One kernel serves a matrix and the matrices of a bucket, whose sides and places are in tables
(:class:`grace.kernels.low_rank.grouped. Factors`). Sums have the reference's order: pieces of a row or a column are added by a
program each, and then joined.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE, check_rows, launch
from grace.kernels.blocks import block_count
from grace.kernels.low_rank.parts import PIECE, SPAN
from grace.kernels.low_rank.reference import check_rows as check_factor
from grace.kernels.low_rank.triton.bases import orthonormalize_into
from grace.kernels.low_rank.triton.ridge import solve_into
from grace.kernels.tensor_list.triton import tensor_of, tile_of

ROWS, COLUMNS = 16, 64  # of a program that makes a product of factors

RIGHT, LEFT = 8, 32  # rows of a program that adds along them, and columns of one that adds down them
DOWN = {
    "COLUMNS": LEFT,
    "TOGETHER": 32,
    "num_warps": 1,
}  # how it does: a thread has many numbers of its column at a time
RANKS = 4  # rows of a factor at a time
_NO_TABLE = (None, None, None)


@triton.jit
def matrix_at(table, sides, programs, x, m, l, r, MANY: tl.constexpr, EVEN: tl.constexpr):
    """The tile of one program: (which matrix, which of its tiles, where it begins, m, l, r)."""
    if MANY:
        task, tile = tile_of(programs)
        x = tensor_of(table, task, 0, EVEN)
        m, l, r = tl.load(sides + 8 * task), tl.load(sides + 8 * task + 1), tl.load(sides + 8 * task + 2)
    else:
        tile = tl.program_id(0).to(tl.int64)
        task = tile - tile
        m, l, r = task + m, task + l, task + r
    return task, tile, x, m, l, r


@triton.jit
def begin_of(sides, task, COLUMN: tl.constexpr, MANY: tl.constexpr):
    """Start of a matrix's left factor (3), right factor (4), place in the message (5), or sums of its rows' (6) or columns'
    (7) pieces, in numbers.
    """
    if MANY:
        begin = tl.load(sides + 8 * task + COLUMN)
    else:
        begin = task
    return begin


@triton.jit
def rows_kernel(
    table, sides, programs, x, q, sums, out, m, l, r,
    MANY: tl.constexpr, EVEN: tl.constexpr, RANKS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """``out [r, m]``: the products of ROWS rows, of 1,024 numbers, with those of q; if longer, ``sums [pieces, r, m]``."""
    task, tile, x, m, l, r = matrix_at(table, sides, programs, x, m, l, r, MANY, EVEN)
    pieces = (l + 1023) // 1024
    i = tile // pieces * ROWS + tl.arange(0, ROWS)
    piece = tile % pieces
    q += begin_of(sides, task, 4, MANY)
    out += begin_of(sides, task, 5, MANY)
    if pieces > 1:
        out = sums + begin_of(sides, task, 6, MANY) + piece * r * m
    begin = piece * 1024
    size = tl.minimum(l - begin, 1024).to(tl.int32)
    numbers, factor = x + begin + i[:, None] * l, q + begin
    for first in range(0, r, RANKS):
        k = first + tl.arange(0, RANKS)
        lanes = tl.zeros((RANKS, ROWS, 16), tl.float32)
        left = tl.where(i < m, size, 0)
        held = tl.where(k < r, size, 0)
        for start in tl.range(0, size, 16, loop_unroll_factor=8):
            j = start + tl.arange(0, 16)
            rows = tl.load(numbers + j[None, :], j[None, :] < left[:, None], 0.0)
            others = tl.load(factor + k[:, None] * l + j[None, :], j[None, :] < held[:, None], 0.0)
            lanes += rows[None, :, :] * others[:, None, :]
        lanes = tl.sum(tl.reshape(lanes, (RANKS, ROWS, 2, 8)), 2)
        lanes = tl.sum(tl.reshape(lanes, (RANKS, ROWS, 2, 4)), 2)
        lanes = tl.sum(tl.reshape(lanes, (RANKS, ROWS, 2, 2)), 2)
        tl.store(out + k[:, None] * m + i[None, :], tl.sum(lanes, 2), (k < r)[:, None] & (i < m)[None, :])


@triton.jit
def columns_kernel(
    table, sides, programs, x, p, sums, out, m, l, r,
    MANY: tl.constexpr, EVEN: tl.constexpr, RANKS: tl.constexpr, COLUMNS: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """``out [r, l]``: the products of COLUMNS columns, of 256 numbers, with p's rows; if longer, ``sums [pieces, r, l]``."""
    task, tile, x, m, l, r = matrix_at(table, sides, programs, x, m, l, r, MANY, EVEN)
    pieces = (m + 255) // 256
    j = tile // pieces * COLUMNS + tl.arange(0, COLUMNS)
    piece = tile % pieces
    p += begin_of(sides, task, 3, MANY)
    out += begin_of(sides, task, 4, MANY)
    if pieces > 1:
        out = sums + begin_of(sides, task, 7, MANY) + piece * r * l
    begin = piece * 256
    size = tl.minimum(m - begin, 256).to(tl.int32)
    for first in range(0, r, RANKS):
        k = first + tl.arange(0, RANKS)
        total = tl.zeros((RANKS, COLUMNS), tl.float32)
        at = x + begin * l + tl.minimum(j, l - 1)  # what is beyond an end is not stored
        factor = p + begin + tl.minimum(k, r - 1) * m
        for start in range(0, size, TOGETHER):
            if start + TOGETHER <= size:
                for t in tl.static_range(0, TOGETHER):
                    total += tl.load(factor + t)[:, None] * tl.load(at + t * l)[None, :]
            else:
                for t in range(size - start):
                    total += tl.load(factor + t)[:, None] * tl.load(at + t * l)[None, :]
            at += TOGETHER * l
            factor += TOGETHER
        tl.store(out + k[:, None] * l + j[None, :], total, (k < r)[:, None] & (j < l)[None, :])


@triton.jit
def join_kernel(sides, programs, sums, out, m, l, r, MANY: tl.constexpr, ALONG: tl.constexpr, TILE: tl.constexpr):
    """The sums of pieces, added in order: ALONG rows, ``[pieces, r, m]``; else down columns, ``[pieces, r, l]``."""
    task, tile, _x, m, l, r = matrix_at(sides, sides, programs, sums, m, l, r, MANY, False)
    if ALONG:
        pieces, size = (l + 1023) // 1024, r * m
        sums += begin_of(sides, task, 6, MANY)
        out += begin_of(sides, task, 5, MANY)
    else:
        pieces, size = (m + 255) // 256, r * l
        sums += begin_of(sides, task, 7, MANY)
        out += begin_of(sides, task, 4, MANY)
    i = tile * TILE + tl.arange(0, TILE)
    total = tl.load(sums + i, i < size, 0.0)
    for piece in range(1, pieces):
        total += tl.load(sums + piece * size + i, i < size, 0.0)
    tl.store(out + i, total, i < size)


@triton.jit
def split_kernel(
    table, sides, programs, x, p, own, q, out, m, l, r,
    HAS_X: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    task, tile, x, m, l, r = matrix_at(table, sides, programs, x, m, l, r, MANY, EVEN)
    if MANY:
        out = tensor_of(table, task, 2, EVEN)
    p += begin_of(sides, task, 3, MANY)
    own += begin_of(sides, task, 4, MANY)
    q += begin_of(sides, task, 4, MANY)
    across = (l + COLUMNS - 1) // COLUMNS
    i = tile // across * ROWS + tl.arange(0, ROWS)
    j = tile % across * COLUMNS + tl.arange(0, COLUMNS)
    inside = (i < m)[:, None] & (j < l)[None, :]
    at = i[:, None] * l + j[None, :]
    mean = tl.zeros((ROWS, COLUMNS), tl.float32)
    if HAS_X:
        rest = tl.load(x + at, inside, 0.0)
    for _ in range(r):
        factor = tl.load(p + i, i < m, 0.0)[:, None]
        mean += factor * tl.load(q + j, j < l, 0.0)[None, :]
        if HAS_X:
            rest -= factor * tl.load(own + j, j < l, 0.0)[None, :]
        p += m
        q += l
        own += l
    if HAS_X:
        tl.store(x + at, rest, inside)
    tl.store(out + at, mean, inside)


@triton.jit(do_not_specialize=["scale"])
def add_kernel(
    table, sides, programs, out, p, q, m, l, r, scale,
    MANY: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    task, tile, out, m, l, r = matrix_at(table, sides, programs, out, m, l, r, MANY, EVEN)
    p += begin_of(sides, task, 3, MANY)
    q += begin_of(sides, task, 4, MANY)
    across = (l + COLUMNS - 1) // COLUMNS
    i = tile // across * ROWS + tl.arange(0, ROWS)
    j = tile % across * COLUMNS + tl.arange(0, COLUMNS)
    inside = (i < m)[:, None] & (j < l)[None, :]
    at = i[:, None] * l + j[None, :]
    product = tl.zeros((ROWS, COLUMNS), tl.float32)
    for _ in range(r):
        product += tl.load(p + i, i < m, 0.0)[:, None] * tl.load(q + j, j < l, 0.0)[None, :]
        p += m
        q += l
    tl.store(out + at, tl.load(out + at, inside, 0.0) + product * scale, inside)


def project_rows(matrix: Tensor, q: Tensor) -> Tensor:
    check_rows(matrix=matrix)
    check_rows(q=q)
    (m, l), r = matrix.shape, len(q)
    pieces, out = block_count(l, SPAN), matrix.new_zeros(r, m)
    if not (m and l):
        return out
    sums = out if pieces == 1 else matrix.new_empty(pieces, r, m)
    launch(rows_kernel, (block_count(m, RIGHT) * pieces,), *_NO_TABLE, matrix, q, sums, out, m, l, r,
           MANY=False, EVEN=False, RANKS=RANKS, ROWS=RIGHT)  # fmt: skip
    if pieces > 1:
        _join(sums, out, m, l, r, along=True)
    return out


def project_columns(matrix: Tensor, p: Tensor) -> Tensor:
    check_rows(matrix=matrix)
    check_rows(p=p)
    (m, l), r = matrix.shape, len(p)
    pieces, out = block_count(m, PIECE), matrix.new_zeros(r, l)
    if not (m and l):
        return out
    sums = out if pieces == 1 else matrix.new_empty(pieces, r, l)
    launch(columns_kernel, (block_count(l, LEFT) * pieces,), *_NO_TABLE, matrix, p, sums, out, m, l, r,
           MANY=False, EVEN=False, RANKS=RANKS, **DOWN)  # fmt: skip
    if pieces > 1:
        _join(sums, out, m, l, r, along=False)
    return out


def _join(sums: Tensor, out: Tensor, m: int, l: int, r: int, *, along: bool) -> None:
    launch(
        join_kernel,
        (block_count(out.numel(), TILE),),
        None,
        None,
        sums,
        out,
        m,
        l,
        r,
        MANY=False,
        ALONG=along,
        TILE=TILE,
    )


def split_low_rank(x: Tensor | None, p: Tensor, own: Tensor, q: Tensor, out: Tensor) -> None:
    check_rows(out=out, x=x)
    check_rows(own=own, q=q)
    check_rows(p=p)
    (m, l), r = out.shape, len(p)
    grid = (block_count(m, ROWS) * block_count(l, COLUMNS),)
    launch(split_kernel, grid, *_NO_TABLE, x if x is not None else out, p, own, q, out, m, l, r, HAS_X=x is not None,
           MANY=False, EVEN=False, ROWS=ROWS, COLUMNS=COLUMNS)  # fmt: skip


def add_low_rank_(out: Tensor, p: Tensor, q: Tensor, scale: float) -> None:
    check_rows(out=out)
    check_rows(p=p)
    check_rows(q=q)
    (m, l), r = out.shape, len(p)
    launch(add_kernel, (block_count(m, ROWS) * block_count(l, COLUMNS),), *_NO_TABLE, out, p, q, m, l, r, scale,
           MANY=False, EVEN=False, ROWS=ROWS, COLUMNS=COLUMNS)  # fmt: skip


def orthonormalize(p: Tensor) -> Tensor:
    check_factor(p)
    check_rows(p=p)
    r, m = p.shape
    out = torch.empty_like(p)
    if p.numel():
        orthonormalize_into(out, p, 1, None, m, r)
    return out


def solve_ridge(p: Tensor, lam: float) -> Tensor:
    check_rows(p=p)
    out = torch.empty_like(p, dtype=torch.float64)
    if p.numel():
        solve_into(out, p, lam, [len(p)])
    return out
