"""Ridge regression as Triton kernels: a program makes one factor, in the order of the reference.

Sums are those by halves of bases. Between what one thread writes and another reads there is a barrier.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import launch
from grace.kernels.low_rank.triton.bases import LOG, TINY, dot_by_halves, largest_of
from grace.kernels.tensor_list.triton import tensor_of


@triton.jit
def _gram(p, gram, work, m, r, LAM: tl.constexpr, LOG: tl.constexpr):
    """The lower triangle of ``gram [r, r]``: ``P^T P + lam t I`` with ``t = trace(P^T P) / r``. Behind it is room for 2 r."""
    CHUNK: tl.constexpr = 1 << LOG
    lane = tl.arange(0, CHUNK)
    zero = tl.zeros((1,), tl.int64)
    for k in range(r):
        for t in range(k + 1):
            tl.store(gram + k * r + t + zero, dot_by_halves(p + k * m, p + t * m, m, work, LOG))
    tl.debug_barrier()
    diagonal, ones = gram + r * r, gram + r * r + r
    for first in range(0, r, CHUNK):
        i = first + lane
        tl.store(diagonal + i, tl.load(gram + i * (r + 1), i < r, 0.0), i < r)
        tl.store(ones + i, tl.full((CHUNK,), 1.0, tl.float64), i < r)
    tl.debug_barrier()
    size = dot_by_halves(diagonal, ones, r, work, LOG) / r.to(tl.float64)
    more = tl.where(size > 0, LAM * size, 1.0)
    for first in range(0, r, CHUNK):
        i = first + lane
        tl.store(gram + i * (r + 1), tl.load(diagonal + i, i < r, 0.0) + more, i < r)
    tl.debug_barrier()


@triton.jit
def _decompose(gram, r, LOG: tl.constexpr):
    """Cholesky: the lower triangle of ``gram [r, r]``, in place."""
    CHUNK: tl.constexpr = 1 << LOG
    lane = tl.arange(0, CHUNK)
    zero = tl.zeros((1,), tl.int64)
    for k in range(r):
        root = tl.sqrt(tl.load(gram + k * (r + 1) + zero))
        tl.debug_barrier()
        for first in range(k, r, CHUNK):
            i = first + lane
            tl.store(gram + i * r + k, tl.load(gram + i * r + k, i < r, 0.0) / root, i < r)
        tl.debug_barrier()
        for t in range(k + 1, r):
            own = tl.load(gram + t * r + k + zero)
            for first in range(k + 1, t + 1, CHUNK):
                j = first + lane
                product = own * tl.load(gram + j * r + k, j <= t, 0.0)
                tl.store(gram + t * r + j, tl.load(gram + t * r + j, j <= t, 0.0) - product, j <= t)
        tl.debug_barrier()


@triton.jit
def _substitute(p, gram, x, m, r, LOG: tl.constexpr):
    """``x [r, m]``: the solutions of the decomposed equations for the columns of p, forth and back."""
    CHUNK: tl.constexpr = 1 << LOG
    zero = tl.zeros((1,), tl.int64)
    for first in range(0, m, CHUNK):
        i = first + tl.arange(0, CHUNK)
        for k in range(r):
            own = tl.load(p + k * m + i, i < m, 0.0).to(tl.float64)
            for j in range(k):
                own -= tl.load(gram + k * r + j + zero) * tl.load(x + j * m + i, i < m, 0.0)
            tl.store(x + k * m + i, own / tl.load(gram + k * (r + 1) + zero), i < m)
            tl.debug_barrier()
        for t in range(r):
            k = r - 1 - t
            own = tl.load(x + k * m + i, i < m, 0.0)
            for u in range(t):
                j = r - 1 - u
                own -= tl.load(gram + j * r + k + zero) * tl.load(x + j * m + i, i < m, 0.0)
            tl.store(x + k * m + i, own / tl.load(gram + k * (r + 1) + zero), i < m)
            tl.debug_barrier()


@triton.jit
def _bound(p, narrow, x, work, m, r, LOG: tl.constexpr):
    """``narrow``: x as :func:`grace.kernels.bound_rows` bounds it; p is multiplied by what x was divided by."""
    CHUNK: tl.constexpr = 1 << LOG
    top = tl.zeros((1,), tl.float64)
    for k in range(r):
        top = tl.maximum(top, dot_by_halves(x + k * m, x + k * m, m, work, LOG))
    scale = tl.sqrt(top) * tl.sqrt(m.to(tl.float64))
    scale = tl.where(scale > 0, scale, 1.0)
    back, forth = 1.0 / scale, scale.to(tl.float32)
    for first in range(0, r * m, CHUNK):
        i = first + tl.arange(0, CHUNK)
        tl.store(narrow + i, (tl.load(x + i, i < r * m, 0.0) * back).to(tl.float32), i < r * m)
        tl.store(p + i, tl.load(p + i, i < r * m, 0.0) * forth, i < r * m)


@triton.jit
def solve_kernel(
    sides, p, narrow, x, gram, work, m, r, stride,
    LAM: tl.constexpr, BOUND: tl.constexpr, MANY: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """``x``: as :func:`grace.kernels.solve_ridge` of ``p [r, m]``. BOUND: and then what :func:`_bound` makes of them. gram:
    room for ``stride`` float64 of each matrix; work: room for as many as x has.
    """
    task = tl.program_id(0).to(tl.int64)
    gram += task * stride
    if MANY:
        m, r = tl.load(sides + 8 * task), tl.load(sides + 8 * task + 2)
        left = tl.load(sides + 8 * task + 3)
        p, narrow, x, work = p + left, narrow + left, x + left, work + left
    else:
        m, r = task + m, task + r
    _gram(p, gram, work, m, r, LAM, LOG)
    _decompose(gram, r, LOG)
    _substitute(p, gram, x, m, r, LOG)
    if BOUND:
        _bound(p, narrow, x, work, m, r, LOG)


def solve_into(
    x: Tensor, p: Tensor, lam: float, ranks: Sequence[int], narrow: Tensor | None = None, sides: Tensor | None = None
) -> None:
    """The solutions ``x``, float64, for a factor of each of these ranks, of which a table of ``sides`` says where they are, or
    for one ``[r, m]``. With ``narrow`` what bounds them, too.
    """
    most = max(ranks)
    stride, m = most * (most + 2), p.shape[-1]
    gram, work = x.new_empty(len(ranks) * stride), torch.empty_like(x)
    launch(solve_kernel, (len(ranks),), sides, p, narrow, x, gram, work, m, most, stride, LAM=lam,
           BOUND=narrow is not None, MANY=sides is not None, LOG=LOG)  # fmt: skip


@triton.jit
def unit_columns_kernel(
    table, sides, drawn, out, SHARE: tl.constexpr, FRESH: tl.constexpr, TINY: tl.constexpr, EVEN: tl.constexpr,
    LOG: tl.constexpr,
):  # fmt: skip
    """``out [r, m]``: columns ``[m, r]``, turned, whose largest number becomes 1. FRESH: and ``SHARE`` of what is drawn for
    each. A program: a matrix.
    """
    CHUNK: tl.constexpr = 1 << LOG
    task = tl.program_id(0).to(tl.int64)
    x = tensor_of(table, task, 0, EVEN)
    m, r = tl.load(sides + 8 * task), tl.load(sides + 8 * task + 2)
    out += tl.load(sides + 8 * task + 3)
    size = tl.maximum(largest_of(x, m * r, LOG), TINY) + tl.zeros((CHUNK,), tl.float32)
    for k in range(r):
        for first in range(0, m, CHUNK):
            i = first + tl.arange(0, CHUNK)
            number = tl.div_rn(tl.load(x + i * r + k, i < m, 0.0), size)
            if FRESH:
                number += tl.load(tensor_of(drawn, task, 0, EVEN) + i * r + k, i < m, 0.0) * SHARE
            tl.store(out + k * m + i, number, i < m)


def unit_columns_into(
    out: Tensor, count: int, columns: Tensor, sides: Tensor, drawn: Tensor | None, share: float, even: bool
) -> None:
    """The columns of ``count`` factors, whose table this is, as rows; ``drawn``: a table of what is drawn for each."""
    launch(unit_columns_kernel, (count,), columns, sides, drawn, out, SHARE=share, FRESH=drawn is not None, TINY=TINY,
           EVEN=even, LOG=LOG)  # fmt: skip
