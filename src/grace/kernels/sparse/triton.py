"""Sparse wires as Triton kernels: written from a selection, and added up tile by tile, one wire after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE, Marks, check_rows, even_runs, launch, power_of_two
from grace.errors import PayloadError
from grace.flags.finite import Flag
from grace.kernels.blocks import block_count
from grace.kernels.index_lists import check_list, layout
from grace.kernels.index_lists.triton import read_lists, write_lists
from grace.kernels.selection.triton import take_topk
from grace.kernels.sparse import DENSE, WirePart
from grace.kernels.sparse.parts import BAD_VALUES, check_parts
from grace.kernels.triton import first_reaching, load_float, magnitude, mark_if, nearest_bfloat16, store_float

_OWNED, _AT_ONCE = 8192, 64  # numbers of the sum that a program owns; wires of a launch


@triton.jit
def _write_values(sent, wire, w, k, NARROW: tl.constexpr, TILE: tl.constexpr):
    """The values of each row, as float32 or as the nearest bfloat16."""
    row = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    value = tl.load(sent + row * k + j, j < k, 0.0)
    base = wire + row * w
    if NARROW:
        word = nearest_bfloat16(value).to(tl.int32, bitcast=True)
        tl.store(base + 2 * j, ((word >> 16) & 0xFF).to(tl.uint8), j < k)
        tl.store(base + 2 * j + 1, ((word >> 24) & 0xFF).to(tl.uint8), j < k)
    else:
        store_float(base + 4 * j, value, j < k)


@triton.jit
def _load_value(at, j, inside, NARROW: tl.constexpr):
    """float32: values j of a wire."""
    if NARROW:
        word = tl.load(at + 2 * j, inside, 0).to(tl.int32) << 16
        word |= tl.load(at + 2 * j + 1, inside, 0).to(tl.int32) << 24
        value = word.to(tl.float32, bitcast=True)
    else:
        value = load_float(at + 4 * j, inside)
    return value


@triton.jit(do_not_specialize=["weight", "steps"])
def _sum_lists(
    wires, index, out, marks, W, b, stride, row_stride, n, k, steps, weight,
    ADD: tl.constexpr, NARROW: tl.constexpr, LISTS: tl.constexpr, OWNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """``out [b, n]``: a program owns OWNED numbers, and adds to them what W lists ``[W, b, k]`` say, in their order.

    Places that leave its part are left alone, whatever a list says. LISTS: the power of two that is at least W.
    """
    row = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0).to(tl.int64) * OWNED
    if ADD == 0:
        for t in range(0, OWNED, TILE):
            i = first + t + tl.arange(0, TILE)
            tl.store(out + row * n + i, tl.zeros((TILE,), tl.float32), i < n)
        tl.debug_barrier()
    lane = tl.arange(0, LISTS)
    mine = index + (lane * b + row) * k
    bound = first + tl.zeros((LISTS,), tl.int64)
    begins = first_reaching(mine, bound, k, steps, lane < W)
    ends = first_reaching(mine, bound + OWNED, k, steps, lane < W)
    for one in range(W):
        end = tl.sum(tl.where(lane == one, ends, 0), 0)
        base = wires + one * stride + row * row_stride
        for start in range(tl.sum(tl.where(lane == one, begins, 0), 0), end, TILE):
            j = start + tl.arange(0, TILE)
            i = tl.load(index + (one * b + row) * k + j, j < end, -1)
            inside = (i >= first) & (i < first + OWNED) & (i < n)
            value = _load_value(base, j, j < end, NARROW)
            mark_if(marks, magnitude(value) >= 0x7F800000)
            at = out + row * n + i
            tl.store(at, tl.load(at, inside, 0.0) + value * weight, inside)
        tl.debug_barrier()  # the next wire's numbers may be another thread's


@triton.jit(do_not_specialize=["weight"])
def _add_part(wire, index, out, marks, n, k, weight, NARROW: tl.constexpr, LISTED: tl.constexpr, TILE: tl.constexpr):
    """Adds k values at the places of one list, or at the first k places; no two are the same."""
    j = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    value = _load_value(wire, j, j < k, NARROW)
    mark_if(marks, magnitude(value) >= 0x7F800000)
    i = j
    if LISTED:
        i = tl.load(index + j, j < k, -1)
    inside = (j < k) & (i >= 0) & (i < n)
    tl.store(out + i, tl.load(out + i, inside, 0.0) + value * weight, inside)


def encode_topk(
    rows: Tensor, k: int, code: str, memory: Tensor | None, rest: Tensor | None, *, narrow: bool
) -> tuple[Tensor, Flag] | Any:
    taken = take_topk(rows, k, memory, rest, narrow=narrow)
    if taken is NotImplemented:
        return NotImplemented
    index, sent, finite = taken
    return _write(index, sent, rows.shape[1], code, narrow), finite


def encode_pairs(index: Tensor, sent: Tensor, n: int, code: str, *, narrow: bool) -> Any:
    if sent.dtype is not torch.float32:
        return NotImplemented
    return _write(index.long().contiguous(), sent.contiguous(), n, code, narrow)


def sum_topk(
    received: Sequence[Tensor], out: Tensor, k: int, code: str, weight: float, *, narrow: bool, add: bool = False
) -> None:
    check_rows(out=out)
    (b, n), marks, at = out.shape, Marks(out), k * (2 if narrow else 4)
    if not add and not received:
        out.zero_()
    wires = list(received)
    for first in range(0, len(wires), _AT_ONCE):
        for run in even_runs(wires[first : first + _AT_ONCE], b, at + layout(n, k, code).size):
            index = read_lists(run, at, n, k, code)
            launch(
                _sum_lists, (block_count(n, _OWNED), b), run.first, index, out, marks.words, run.count, b, run.stride,
                run.row, n, k, k.bit_length(), weight,
                ADD=add, NARROW=narrow, LISTS=power_of_two(run.count), OWNED=_OWNED, TILE=TILE,
            )  # fmt: skip
            add = True
    marks.refuse(0, lambda: PayloadError(BAD_VALUES))


def sum_sparse(parts: Sequence[WirePart], out: Tensor, weight: float, *, narrow: bool, add: bool = False) -> None:
    check_rows(out=out)
    check_parts(parts, out.numel(), narrow=narrow)
    if not add:
        out.zero_()
    n, marks = out.numel(), Marks(out)
    for part in parts:
        dense = part.code == DENSE
        k, index = (n, None) if dense else (part.k, _places(part, n))
        launch(_add_part, (block_count(k, TILE),), part.wire[part.values :], index, out, marks.words, n, k, weight,
               NARROW=narrow, LISTED=not dense, TILE=TILE)  # fmt: skip
    marks.refuse(0, lambda: PayloadError(BAD_VALUES))


def _write(index: Tensor, sent: Tensor, n: int, code: str, narrow: bool) -> Tensor:
    """The wires of legal lists ``[b, k]`` int64 and their values."""
    b, k = index.shape
    at = k * (2 if narrow else 4)
    wire = torch.empty(b, at + layout(n, k, code).size, dtype=torch.uint8, device=index.device)
    launch(_write_values, (block_count(k, TILE), b), sent, wire, wire.shape[1], k, NARROW=narrow, TILE=TILE)
    write_lists(index, wire, at, n, code)
    return wire


def _places(part: WirePart, n: int) -> Tensor:
    """The places ``[k]`` of a part, int64, legal."""
    if part.places is not None:
        return check_list(part.places[None].long().contiguous(), n)[0]
    end = part.codes + layout(n, part.k, part.code).size
    run = next(even_runs([part.wire[None, part.codes : end]], 1, end - part.codes))
    return read_lists(run, 0, n, part.k, part.code)[0, 0]
