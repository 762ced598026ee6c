"""Codebooks as Triton kernels."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE
from grace.errors import PayloadError
from grace.flags.finite import Flag
from grace.kernels.codebook import BAD_CODE, BAD_SCALE, Codebook, codebook_bytes
from grace.kernels.many import Many
from grace.kernels.many.jobs import Job, Rows, Tensors, add_up, add_up_many
from grace.kernels.many.triton import adder_at, encoder_at, so_far
from grace.kernels.statistics.triton import largest, largest_of_many
from grace.kernels.triton import load_float, load_sum, magnitude, mark_if, negated, store_float


@triton.jit
def _encode(
    table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, step, block, tops, entries, middle,
    MANY: tl.constexpr, EVEN: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_REST: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    _task, tile, x, e, rest, start, n, base, bad, head, nb, _key0, _key1 = encoder_at(
        table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, block, MANY, EVEN
    )
    i = tile * TILE + tl.arange(0, TILE)
    inside = i < n
    p = load_sum(x, e, start + i, inside, HAS_MEMORY)
    mark_if(bad, magnitude(p) >= 0x7F800000)
    k = i // block
    top = tl.load(tops + head + k, inside, 0.0)
    scale = tl.where(top >= 1.1754943508222875e-38, top, 0.0)
    up = tl.where(scale < 5.421010862427522e-20, 1152921504606846976.0, 1.0)
    live = scale > 0
    factor = tl.where(live, tl.div_rn(tl.zeros_like(scale) + 1.0, tl.where(live, scale * up, 1.0)), 0.0)
    y = tl.minimum(tl.abs(p) * up * factor, 1.0)
    code = tl.zeros((TILE,), tl.int32)  # how many middles are below y
    for turn in tl.static_range(0, 7):
        below = tl.load(middle + code + (64 >> turn) - 1) < y
        code += tl.where(below, 64 >> turn, 0)
    minus = (p < 0) & (code > 0)
    store_float(base + 4 * k, scale, inside & (i % block == 0))
    tl.store(base + 4 * nb + i, (code | tl.where(minus, 0x80, 0)).to(tl.uint8), inside)
    if HAS_REST:
        said = tl.load(entries + code)
        tl.store(rest + start + i, p - tl.where(minus, negated(said), said) * scale, inside)


@triton.jit(do_not_specialize=["weight"])
def _sum(
    table, programs, wires, out, marks, n, W, stride, row_stride, block, weight, entries,
    MANY: tl.constexpr, EVEN: tl.constexpr, ADD: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    out, i, n, base, marks, nb = adder_at(table, programs, wires, out, marks, n, row_stride, block, 2, MANY, EVEN, TILE)
    inside, total = i < n, so_far(out, i, n, ADD)
    for _ in range(W):
        scale = load_float(base + 4 * (i // block), inside)
        mark_if(marks, ((scale >= 0) & (scale < float("inf"))) == 0)
        code = tl.load(base + 4 * nb + i, inside, 0).to(tl.int32)
        mark_if(marks + 1, code == 0x80)
        said = tl.load(entries + (code & 0x7F))
        total += tl.where(code >= 0x80, negated(said), said) * (scale * weight)
        base += stride
    tl.store(out + i, total, inside)


def encode_codebook(
    rows: Tensor, book: Codebook, block: int, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, Flag]:
    out: tuple[Tensor, Flag] = _write(Rows(rows, memory, rest, codebook_bytes(rows.shape[1], block)), book, block)
    return out


def encode_codebook_many(message: Tensor, many: Many, book: Codebook, block: int) -> Tensor:
    out: Tensor = _write(Tensors(message, many), book, block)
    return out


def _write(job: Job, book: Codebook, block: int) -> Any:
    tops = job.reduce(largest, largest_of_many, block)
    return job.encode(_encode, block, tops, book.entries_on(tops.device), _middle_on(book, tops.device), TILE=TILE)


def sum_codebook(
    received: Sequence[Tensor], out: Tensor, book: Codebook, block: int, weight: float, *, add: bool = False
) -> None:
    width, entries = codebook_bytes(out.shape[1], block), book.entries_on(out.device)
    marks = add_up(_sum, received, out, width, block, weight, 2, entries, add=add)
    marks.refuse(0, lambda: PayloadError(BAD_SCALE))
    marks.refuse(1, lambda: PayloadError(BAD_CODE))


def sum_codebook_many(rows: Tensor, many: Many, book: Codebook, block: int, weight: float) -> Tensor:
    return add_up_many(_sum, rows, many, block, weight, 2, book.entries_on(rows.device))


@functools.lru_cache(maxsize=32)
def _middle_on(book: Codebook, device: torch.device) -> Tensor:
    """The numbers between magnitudes on a device, copied there once."""
    return book.middle.to(device)
