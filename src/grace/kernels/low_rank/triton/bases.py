"""Bases and the like as Triton kernels: a program makes one factor, whose rows it goes through a chunk at a time.

Sums by halves: while the halves are longer than a chunk they are added in memory, and then on the chip. Between what one
thread writes and another reads there is a barrier.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import launch
from grace.kernels.tensor_list.triton import tensor_of, tile_of
from grace.kernels.triton import magnitude, mark_if

LOG = 10  # a chunk has 2**LOG numbers
TINY, HALF = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max / 2


@triton.jit
def fold(total, LOG: tl.constexpr):
    """float64 ``[2**LOG]`` -> ``[1]``: the upper half is added to the lower, LOG times."""
    for t in tl.static_range(0, LOG):
        total = tl.sum(tl.reshape(total, (2, 1 << (LOG - 1 - t))), 0)
    return total


@triton.jit
def dot_by_halves(u, v, n, work, LOG: tl.constexpr):
    """float64 ``[1]``: the sum by halves of the products of ``u [n]`` and ``v [n]``. work: room for n float64."""
    CHUNK: tl.constexpr = 1 << LOG
    lane = tl.arange(0, CHUNK)
    half = n - n + 1
    while 2 * half < n:
        half = 2 * half
    if half < CHUNK:
        low = tl.load(u + lane, lane < n, 0.0).to(tl.float64)
        total = low * tl.load(v + lane, lane < n, 0.0).to(tl.float64)
        # behind the end zero is added, and minus zero, which changes nothing, where the reference adds nothing
        total = tl.where(lane < n, total, tl.where(lane < 2 * half, 0.0, -0.0).to(tl.float64))
    else:
        for first in range(0, half, CHUNK):
            i = first + lane
            low = tl.load(u + i).to(tl.float64) * tl.load(v + i).to(tl.float64)
            j = i + half
            high = tl.load(u + j, j < n, 0.0).to(tl.float64) * tl.load(v + j, j < n, 0.0).to(tl.float64)
            tl.store(work + i, low + high)
        tl.debug_barrier()
        half = half // 2
        while half >= CHUNK:
            for first in range(0, half, CHUNK):
                i = first + lane
                tl.store(work + i, tl.load(work + i) + tl.load(work + i + half))
            tl.debug_barrier()
            half = half // 2
        total = tl.load(work + lane)
        tl.debug_barrier()
    return fold(total, LOG)


@triton.jit
def largest_of(x, n, LOG: tl.constexpr):
    """float32 ``[1]``: the largest magnitude of ``x [n]``; an inf or NaN above all others."""
    CHUNK: tl.constexpr = 1 << LOG
    top = tl.zeros((CHUNK,), tl.int32)
    for first in range(0, n, CHUNK):
        i = first + tl.arange(0, CHUNK)
        top = tl.maximum(top, magnitude(tl.load(x + i, i < n, 0.0)))
    return (tl.zeros((1,), tl.int32) + tl.max(top, 0)).to(tl.float32, bitcast=True)


@triton.jit
def _reflect(a, j, r, m, tau, work, LOG: tl.constexpr):
    """``a_k -= (tau (a_j . a_k)) a_j`` for the rows k > j of ``a [r, m]``."""
    CHUNK: tl.constexpr = 1 << LOG
    v = a + j * m
    for k in range(j + 1, r):
        row = a + k * m
        c = tau * dot_by_halves(v, row, m, work, LOG)
        for first in range(0, m, CHUNK):
            i = first + tl.arange(0, CHUNK)
            tl.store(row + i, tl.load(row + i, i < m, 0.0) - c * tl.load(v + i, i < m, 0.0), i < m)
    tl.debug_barrier()


@triton.jit
def _orthonormalize(sides, p, out, wide, work, m, r, TINY: tl.constexpr, MANY: tl.constexpr, LOG: tl.constexpr):
    """As :func:`grace.kernels.orthonormalize`; wide and work: room for as many float64. A program: a factor."""
    CHUNK: tl.constexpr = 1 << LOG
    lane = tl.arange(0, CHUNK)
    zero = tl.zeros((1,), tl.int64)
    task = tl.program_id(0).to(tl.int64)
    if MANY:
        m, r = tl.load(sides + 8 * task), tl.load(sides + 8 * task + 2)
        left = tl.load(sides + 8 * task + 3)
        p += tl.load(sides + 8 * task + 5)
        out, wide, work = out + left, wide + left, work + left
    else:
        m, r = task + m, task + r
    taus = work + r * (m - 1)  # behind what sums need
    for k in range(r):
        size = tl.maximum(largest_of(p + k * m, m, LOG), TINY).to(tl.float64)
        for first in range(0, m, CHUNK):
            i = first + lane
            tl.store(wide + k * m + i, tl.load(p + k * m + i, i < m, 0.0).to(tl.float64) / size, i < m)
    tl.debug_barrier()
    for j in range(r):
        row = wide + j * m
        head = tl.load(row + j + zero)
        tl.debug_barrier()
        for first in range(0, j + 1, CHUNK):
            i = first + lane
            tl.store(row + i, tl.zeros((CHUNK,), tl.float64), i <= j)
        tl.debug_barrier()
        tail = dot_by_halves(row, row, m, work, LOG)
        norm = tl.sqrt(head * head + tail)
        end = tl.where(head < 0, norm, norm * -1.0)
        some = tail > 0
        tau = tl.where(some, (end - head) / tl.where(some, end, 1.0), 0.0)
        scale = tl.where(some, head - end, 1.0)
        for first in range(0, m, CHUNK):
            i = first + lane
            tl.store(row + i, tl.where(i == j, 1.0, tl.load(row + i, i < m, 0.0) / scale), i < m)
        tl.store(taus + j + zero, tau)
        tl.debug_barrier()
        _reflect(wide, j, r, m, tau, work, LOG)
    for t in range(r):
        j = r - 1 - t
        tau = tl.load(taus + j + zero)
        _reflect(wide, j, r, m, tau, work, LOG)
        row = wide + j * m
        for first in range(0, m, CHUNK):
            i = first + lane
            unit = tl.where(i == j, 1.0, 0.0).to(tl.float64)
            tl.store(row + i, unit - tau * tl.load(row + i, i < m, 0.0), i < m)
        tl.debug_barrier()
    for first in range(0, r * m, CHUNK):
        i = first + lane
        tl.store(out + i, tl.load(wide + i, i < r * m, 0.0).to(tl.float32), i < r * m)


def orthonormalize_into(out: Tensor, p: Tensor, count: int, sides: Tensor | None, m: int = 0, r: int = 0) -> None:
    """Bases of ``count`` factors, of which a table says where they are, or of one of ``[r, m]``."""
    wide, work = (torch.empty(out.numel(), dtype=torch.float64, device=out.device) for _ in range(2))
    launch(_orthonormalize, (count,), sides, p, out, wide, work, m, r, TINY=TINY, MANY=sides is not None, LOG=LOG)


@triton.jit
def unit_rows_kernel(table, sides, programs, out, work, TINY: tl.constexpr, EVEN: tl.constexpr, LOG: tl.constexpr):
    """Row k of ``out [r, l]``: column k of a state ``[l, r]``, scaled by :func:`grace.kernels.unit_rows`. A program: a row."""
    CHUNK: tl.constexpr = 1 << LOG
    lane = tl.arange(0, CHUNK)
    task, k = tile_of(programs)
    state = tensor_of(table, task, 0, EVEN)
    l, r = tl.load(sides + 8 * task + 1), tl.load(sides + 8 * task + 2)
    begin = tl.load(sides + 8 * task + 4) + k * l
    out, work = out + begin, work + begin
    for first in range(0, l, CHUNK):
        i = first + lane
        tl.store(out + i, tl.load(state + i * r + k, i < l, 0.0), i < l)
    tl.debug_barrier()
    size = tl.maximum(largest_of(out, l, LOG), TINY)
    for first in range(0, l, CHUNK):
        i = first + lane
        tl.store(out + i, tl.div_rn(tl.load(out + i, i < l, 0.0), size + tl.zeros((CHUNK,), tl.float32)), i < l)
    tl.debug_barrier()
    norm = tl.sqrt(dot_by_halves(out, out, l, work, LOG)).to(tl.float32)
    root = tl.sqrt(l.to(tl.float64)).to(tl.float32)
    norm = tl.maximum(norm, 0.5) * root
    for first in range(0, l, CHUNK):
        i = first + lane
        tl.store(out + i, tl.div_rn(tl.load(out + i, i < l, 0.0), norm + tl.zeros((CHUNK,), tl.float32)), i < l)


@triton.jit
def fit_kernel(sides, p, q, marks, HALF: tl.constexpr, POISON: tl.constexpr, LOG: tl.constexpr):
    """A mark where :func:`grace.kernels.product_fits` does not hold; POISON: and NaN in q's place. A program: a matrix."""
    CHUNK: tl.constexpr = 1 << LOG
    task = tl.program_id(0).to(tl.int64)
    m, l, r = tl.load(sides + 8 * task), tl.load(sides + 8 * task + 1), tl.load(sides + 8 * task + 2)
    p += tl.load(sides + 8 * task + 3)
    q += tl.load(sides + 8 * task + 4)
    most = tl.zeros((1,), tl.float64)
    for k in range(r):
        most += largest_of(p + k * m, m, LOG).to(tl.float64) * largest_of(q + k * l, l, LOG).to(tl.float64)
    bad = (most <= HALF) == 0
    mark_if(marks + task, bad)
    if POISON:
        for first in range(0, r * l, CHUNK):
            i = first + tl.arange(0, CHUNK)
            tl.store(q + i, tl.full((CHUNK,), float("nan"), tl.float32), (i < r * l) & bad)


@triton.jit
def succeed_kernel(table, sides, programs, flags, right, EVEN: tl.constexpr, TILE: tl.constexpr):
    """A state's successor ``[l, r]``: the right factor ``[r, l]`` where the flag is set, else the state."""
    task, tile = tile_of(programs)
    state, successor = tensor_of(table, task, 0, EVEN), tensor_of(table, task, 2, EVEN)
    l, r = tl.load(sides + 8 * task + 1), tl.load(sides + 8 * task + 2)
    right += tl.load(sides + 8 * task + 4)
    fine = tl.load(flags + task) != 0
    i = tile * TILE + tl.arange(0, TILE)
    new = tl.load(right + i % r * l + i // r, i < l * r, 0.0)
    tl.store(successor + i, tl.where(fine, new, tl.load(state + i, i < l * r, 0.0)), i < l * r)


@triton.jit
def turn_kernel(
    table, sides, programs, flat, SIDE: tl.constexpr, GATHER: tl.constexpr, EVEN: tl.constexpr, TILE: tl.constexpr
):
    """GATHER: sets left (SIDE 0) or right (1) factors ``[r, side]`` to tensors ``[side, r]``; else the tensors to them."""
    task, tile = tile_of(programs)
    x = tensor_of(table, task, 0, EVEN)
    side, r = tl.load(sides + 8 * task + SIDE), tl.load(sides + 8 * task + 2)
    flat += tl.load(sides + 8 * task + 3 + SIDE)
    i = tile * TILE + tl.arange(0, TILE)
    inside = i < side * r
    at = flat + i % r * side + i // r
    if GATHER:
        tl.store(at, tl.load(x + i, inside, 0.0), inside)
    else:
        tl.store(x + i, tl.load(at, inside, 0.0), inside)
