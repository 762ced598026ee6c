"""Codebooks as Triton kernels."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.host import to_device
from grace.errors import PayloadError
from grace.flags.finite import Flag
from grace.kernels.blocks import fits_tile
from grace.kernels.dynamic_8bit import BAD_CODE, BAD_SCALE, Codebook, codebook_bytes
from grace.kernels.statistics.triton import largest, largest_of_many
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.jobs import Job, Rows, Tensors, add_up, add_up_many, span_of
from grace.kernels.tensor_list.triton import adder_at, encoder_at, so_far
from grace.kernels.triton import load_tile, magnitude, mark_if, negated, store_tile
from grace.kernels.triton.tiles import (
    fields_of_blocks,
    left_of,
    of_blocks,
    spread,
    store_fields,
    sum_of_tile,
    tops_of_blocks,
)


@triton.jit(do_not_specialize=["n", "step"])
def _encode(
    table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, step, block: tl.constexpr, tops, entries,
    middle,
    MANY: tl.constexpr, EVEN: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_REST: tl.constexpr, FINDS: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """FINDS: whether blocks are in this tile, which finds what is largest in them."""
    _task, tile, x, e, rest, start, n, base, bad, head, nb, _key0, _key1 = encoder_at(
        table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, block, MANY, EVEN
    )
    lane = tl.arange(0, TILE)
    first, begin, inside, full, p = sum_of_tile(x, e, bad, tile, start, n, lane, HAS_MEMORY, TILE)
    if FINDS:
        top = tops_of_blocks(magnitude(p), block, TILE).to(tl.float32, bitcast=True)
    else:
        top = of_blocks(tops + head, first, lane, inside, n, block, TILE)
    scale = tl.where(top >= 1.1754943508222875e-38, top, 0.0)
    up = tl.where(scale < 5.421010862427522e-20, 1152921504606846976.0, 1.0)
    live = scale > 0
    factor = tl.where(live, tl.div_rn(tl.zeros_like(scale) + 1.0, tl.where(live, scale * up, 1.0)), 0.0)
    store_fields(base, scale, first, lane, inside, n, block, TILE)
    y = tl.abs(p) * spread(up, first, lane, block, TILE) * spread(factor, first, lane, block, TILE)
    y = tl.minimum(y, 1.0)
    code = tl.zeros((TILE,), tl.int32)  # how many middles are below y
    for turn in tl.static_range(0, 7):
        below = tl.load(middle + code + (64 >> turn) - 1) < y
        code += tl.where(below, 64 >> turn, 0)
    minus = (p < 0) & (code > 0)
    store_tile(base + 4 * nb + first + lane, (code | tl.where(minus, 0x80, 0)).to(tl.uint8), inside, full)
    if HAS_REST:
        decoded = tl.load(entries + code)
        decoded = tl.where(minus, negated(decoded), decoded) * spread(scale, first, lane, block, TILE)
        store_tile(rest + begin + lane, p - decoded, inside, full)


@triton.jit(do_not_specialize=["weight", "n"])
def _sum(
    table, programs, wires, out, marks, n, W, stride, row_stride, block: tl.constexpr, weight, entries,
    MANY: tl.constexpr, EVEN: tl.constexpr, ADD: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    out, first, n, base, marks, nb = adder_at(
        table, programs, wires, out, marks, n, row_stride, block, 2, MANY, EVEN, TILE
    )
    out, lane, left = out + first, tl.arange(0, TILE), left_of(n, first, TILE)
    inside, full = lane < left, left == TILE
    total, legal = so_far(out, lane, left, ADD, full), lane >= 0
    wrong = tl.full((1,), 0, tl.int32)
    for _ in range(W):
        scale = fields_of_blocks(base, first, lane, inside, n, block, TILE)
        wrong = tl.maximum(wrong, tl.max((((scale >= 0) & (scale < float("inf"))) == 0).to(tl.int32), 0))
        code = load_tile(base + 4 * nb + first + lane, inside, full).to(tl.int32)
        legal = legal & (code != 0x80)
        decoded = tl.load(entries + (code & 0x7F))
        total += tl.where(code >= 0x80, negated(decoded), decoded) * spread(scale * weight, first, lane, block, TILE)
        base += stride
    mark_if(marks, wrong > 0)
    mark_if(marks + 1, (legal == 0) & inside)
    store_tile(out + lane, total, inside, full)


def encode_codebook(
    rows: Tensor, book: Codebook, block: int, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, Flag]:
    out: tuple[Tensor, Flag] = _write(Rows(rows, memory, rest, codebook_bytes(rows.shape[1], block)), book, block)
    return out


def encode_codebook_many(message: Tensor, many: TensorList, book: Codebook, block: int) -> Tensor:
    out: Tensor = _write(Tensors(message, many), book, block)
    return out


def _write(job: Job, book: Codebook, block: int) -> Any:
    finds = fits_tile(block)
    tops, tile = None if finds else job.reduce(largest, largest_of_many, block), span_of(block, whole=finds)
    entries, middle = book.entries_on(job.device), _middle_on(book, job.device)
    return job.encode(_encode, block, tops, entries, middle, FINDS=finds, tile=tile, TILE=tile)


def sum_codebook(
    received: Sequence[Tensor], out: Tensor, book: Codebook, block: int, weight: float, *, add: bool = False
) -> None:
    width, entries = codebook_bytes(out.shape[1], block), book.entries_on(out.device)
    marks = add_up(_sum, received, out, width, block, weight, 2, entries, add=add)
    marks.refuse(0, lambda: PayloadError(BAD_SCALE))
    marks.refuse(1, lambda: PayloadError(BAD_CODE))


def sum_codebook_many(rows: Tensor, many: TensorList, book: Codebook, block: int, weight: float) -> Tensor:
    return add_up_many(_sum, rows, many, block, weight, 2, book.entries_on(rows.device))


@functools.cache
def _middle_on(book: Codebook, device: torch.device) -> Tensor:
    """The numbers between magnitudes on a device, copied there once."""
    return to_device(book.middle, device, waits=True)
