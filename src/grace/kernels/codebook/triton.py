"""Codebooks as Triton kernels."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE, Marks, check_rows, even_runs, launch
from grace.errors import PayloadError
from grace.flags.finite import Flag
from grace.kernels.blocks import block_count
from grace.kernels.codebook import BAD_CODE, BAD_SCALE, Codebook, codebook_bytes
from grace.kernels.statistics.triton import largest
from grace.kernels.triton import load_float, load_sum, magnitude, mark_if, negated, store_float


@triton.jit
def _encode(
    x, e, rest, wire, tops, entries, middle, bad, n, block, nb, w,
    HAS_MEMORY: tl.constexpr, HAS_REST: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = i < n
    p = load_sum(x, e, row * n + i, inside, HAS_MEMORY)
    mark_if(bad, magnitude(p) >= 0x7F800000)
    k = i // block
    top = tl.load(tops + row * nb + k, inside, 0.0)
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
    base = wire + row * w
    store_float(base + 4 * k, scale, inside & (i % block == 0))
    tl.store(base + 4 * nb + i, (code | tl.where(minus, 0x80, 0)).to(tl.uint8), inside)
    if HAS_REST:
        said = tl.load(entries + code)
        tl.store(rest + row * n + i, p - tl.where(minus, negated(said), said) * scale, inside)


@triton.jit(do_not_specialize=["weight"])
def _sum(
    wires, out, entries, marks, W, stride, row_stride, n, block, nb, weight, ADD: tl.constexpr, TILE: tl.constexpr
):
    row = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = i < n
    total = tl.zeros((TILE,), tl.float32)
    if ADD:
        total = tl.load(out + row * n + i, inside, 0.0)
    base = wires + row * row_stride
    for _ in range(W):
        scale = load_float(base + 4 * (i // block), inside)
        mark_if(marks, ((scale >= 0) & (scale < float("inf"))) == 0)
        code = tl.load(base + 4 * nb + i, inside, 0).to(tl.int32)
        mark_if(marks + 1, code == 0x80)
        said = tl.load(entries + (code & 0x7F))
        total += tl.where(code >= 0x80, negated(said), said) * (scale * weight)
        base += stride
    tl.store(out + row * n + i, total, inside)


def encode_codebook(
    rows: Tensor, book: Codebook, block: int, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, Flag]:
    check_rows(rows=rows, memory=memory, rest=rest)
    b, n = rows.shape
    tops = largest(rows, memory, block)
    wire = torch.empty(b, codebook_bytes(n, block), dtype=torch.uint8, device=rows.device)
    bad = Marks(rows)
    launch(
        _encode, (block_count(n, TILE), b), rows, memory, rest, wire, tops, book.entries_on(rows.device),
        _middle_on(book, rows.device), bad.words, n, block, tops.shape[1], wire.shape[1],
        HAS_MEMORY=memory is not None, HAS_REST=rest is not None, TILE=TILE,
    )  # fmt: skip
    return wire, bad.unset()


def sum_codebook(
    received: Sequence[Tensor], out: Tensor, book: Codebook, block: int, weight: float, *, add: bool = False
) -> None:
    check_rows(out=out)
    (b, n), marks = out.shape, Marks(out, 2)
    if not add and not received:
        out.zero_()
    for run in even_runs(received, b, codebook_bytes(n, block)):
        launch(
            _sum, (block_count(n, TILE), b), run.first, out, book.entries_on(out.device), marks.words, run.count, run.stride,
            run.row, n, block, block_count(n, block), weight, ADD=add, TILE=TILE,
        )  # fmt: skip
        add = True
    marks.refuse(0, lambda: PayloadError(BAD_SCALE))
    marks.refuse(1, lambda: PayloadError(BAD_CODE))


@functools.lru_cache(maxsize=32)
def _middle_on(book: Codebook, device: torch.device) -> Tensor:
    """The numbers between magnitudes on a device, copied there once."""
    return book.middle.to(device)
