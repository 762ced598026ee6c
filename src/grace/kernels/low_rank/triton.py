"""Thin factors as Triton kernels: what is left of a worker's matrix and the mean, in one pass."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import check_rows, launch
from grace.kernels.blocks import block_count

_ROWS, _COLUMNS = 16, 64  # of a program


@triton.jit
def _split(x, p, own, q, out, m, l, r, HAS_X: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
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
def _add(out, p, q, m, l, r, scale, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (i < m)[:, None] & (j < l)[None, :]
    at = i[:, None] * l + j[None, :]
    product = tl.zeros((ROWS, COLUMNS), tl.float32)
    for _ in range(r):
        product += tl.load(p + i, i < m, 0.0)[:, None] * tl.load(q + j, j < l, 0.0)[None, :]
        p += m
        q += l
    tl.store(out + at, tl.load(out + at, inside, 0.0) + product * scale, inside)


def split_low_rank(x: Tensor | None, p: Tensor, own: Tensor, q: Tensor, out: Tensor) -> None:
    check_rows(out=out, x=x)
    check_rows(own=own, q=q)
    check_rows(p=p)
    (m, l), r = out.shape, len(p)
    launch(_split, _grid(out), x if x is not None else out, p, own, q, out, m, l, r, HAS_X=x is not None, ROWS=_ROWS,
           COLUMNS=_COLUMNS)  # fmt: skip


def add_low_rank_(out: Tensor, p: Tensor, q: Tensor, scale: float) -> None:
    check_rows(out=out)
    check_rows(p=p)
    check_rows(q=q)
    (m, l), r = out.shape, len(p)
    launch(_add, _grid(out), out, p, q, m, l, r, scale, ROWS=_ROWS, COLUMNS=_COLUMNS)


def _grid(matrix: Tensor) -> tuple[int, int]:
    m, l = matrix.shape
    return block_count(m, _ROWS), block_count(l, _COLUMNS)
