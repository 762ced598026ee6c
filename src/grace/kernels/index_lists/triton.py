"""Index lists as Triton kernels: fields are packed byte by byte; which bits are set is counted, scanned and written down.

Bits that are set ascend with the list: a program finds those of its bytes by bisection, and no two write the same byte.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE, Marks, Wires, launch
from grace.flags.finite import on_host
from grace.kernels.blocks import block_count
from grace.kernels.index_lists import (
    FIXED,
    NOT_INCREASING,
    OUT_OF_RANGE,
    WRONG_BITS,
    check_width,
    explain,
    index_bits,
    layout,
)
from grace.kernels.packing import packed_bytes
from grace.kernels.triton import first_reaching, load_bits, mark_if, pack_byte, scan

RAW, BITMAP, ELIAS_FANO = range(len(FIXED))
_BYTES = 128  # of a program, each with eight bits


@triton.jit
def _write_fields(index, wire, w, k, width, BITS: tl.constexpr, TILE: tl.constexpr):
    """The low ``BITS`` bits of each index, in ``width`` bytes."""
    row = tl.program_id(1).to(tl.int64)
    o = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    tl.store(wire + row * w + o, pack_byte(index + row * k, o, k, BITS), o < width)


@triton.jit(do_not_specialize=["steps"])
def _write_bits(index, high, wire, w, k, width, steps, ELIAS_FANO: tl.constexpr, TILE: tl.constexpr):
    """Sets, in ``width`` bytes, bit ``index_j`` (Elias-Fano: ``high_j = (index_j >> low) + j``) for each j."""
    row = tl.program_id(1).to(tl.int64)
    o = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    bits = index + row * k
    if ELIAS_FANO:
        bits = high + row * k
    first = first_reaching(bits, 8 * o, k, steps, o < width)
    byte = tl.zeros((TILE,), tl.int32)
    for t in tl.static_range(0, 8):
        bit = tl.load(bits + first + t, (o < width) & (first + t < k), -1) - 8 * o
        byte |= tl.where((bit >= 0) & (bit < 8), 1 << tl.minimum(tl.maximum(bit, 0), 7).to(tl.int32), 0)
    tl.store(wire + row * w + o, byte.to(tl.uint8), o < width)


@triton.jit(do_not_specialize=["shift"])
def _raise(index, high, k, shift, TILE: tl.constexpr):
    """``high_j = (index_j >> shift) + j``."""
    row = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    tl.store(high + row * k + j, (tl.load(index + row * k + j, j < k, 0) >> shift) + j, j < k)


@triton.jit
def _read_fields(wires, index, b, stride, row_stride, k, width, BITS: tl.constexpr, TILE: tl.constexpr):
    """Fields of ``BITS`` bits; wire number j of row r at ``j stride + r row_stride``, as ``launching.Wires`` says."""
    one = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    at = wires + one // b * stride + one % b * row_stride
    tl.store(index + one * k + j, load_bits(at, j, j < k, width, BITS), j < k)


@triton.jit
def _bits_of(at, o, width):
    """``[TILE, 8]`` int32: the bits of bytes o."""
    byte = tl.load(at + o, o < width, 0).to(tl.int32)
    return (byte[:, None] >> tl.arange(0, 8)[None, :]) & 1


@triton.jit
def _count_bits(wires, counts, b, stride, row_stride, width, tiles, TILE: tl.constexpr):
    """How many bits of each tile of bytes are set."""
    one = tl.program_id(1).to(tl.int64)
    o = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    bits = _bits_of(wires + one // b * stride + one % b * row_stride, o, width)
    tl.store(counts + one * tiles + tl.program_id(0), tl.sum(tl.sum(bits, 1), 0))


@triton.jit
def _read_bits(
    wires, fields, begins, index, b, stride, row_stride, k, width, low_width, tiles,
    LOW: tl.constexpr, ELIAS_FANO: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The places of the first k bits that are set; of Elias-Fano's code, the indices of which they are the upper part."""
    row = tl.program_id(1).to(tl.int64)
    o = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    away = row // b * stride + row % b * row_stride
    bits = _bits_of(wires + away, o, width)
    flat = tl.reshape(bits, (TILE * 8,))
    j = (tl.load(begins + row * tiles + tl.program_id(0)) + tl.cumsum(flat, 0) - flat).to(tl.int64)
    keep = (flat > 0) & (j < k)
    place = tl.program_id(0).to(tl.int64) * TILE * 8 + tl.arange(0, TILE * 8)
    if ELIAS_FANO:
        place = ((place - j) << LOW) | load_bits(fields + away, j, keep, low_width, LOW)
    tl.store(index + row * k + j, place, keep)


@triton.jit
def _check(index, marks, n, k, TILE: tl.constexpr):
    """Marks a list that does not increase strictly, and one that leaves [0, n)."""
    row = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    place = tl.load(index + row * k + j, j < k, 0)
    more = j + 1 < k
    mark_if(marks, more & (tl.load(index + row * k + j + 1, more, 0) <= place))
    mark_if(marks + 1, (place < 0) | (place >= n))


def encode_indices(index: Tensor, n: int, code: str) -> Any:
    if index.dtype is not torch.int64:
        return NotImplemented
    index = index.contiguous()
    b, k = index.shape
    _refuse_bad(index, n)
    wire = torch.empty(b, layout(n, k, code).size, dtype=torch.uint8, device=index.device)
    write_lists(index, wire, 0, n, code)
    return wire


def decode_indices(packed: Tensor, n: int, k: int, code: str) -> Any:
    check_width(packed, n, k, code)
    if packed.dtype is not torch.uint8:
        return NotImplemented
    if packed.shape[1] > 1 and packed.stride(1) != 1:
        packed = packed.contiguous()
    return read_lists(Wires(packed, 1, 0, packed.stride(0)), 0, n, k, code)[0]


def write_lists(index: Tensor, wire: Tensor, at: int, n: int, code: str) -> None:
    """The code of lists ``[b, k]`` int64, which are legal, from byte ``at`` of each row of ``wire [b, w]`` on."""
    (b, k), w = index.shape, wire.shape[1]
    number, low, size = layout(n, k, code)
    fields = packed_bytes(k, low)
    if low:  # all of a raw code
        launch(_write_fields, (block_count(fields, TILE), b), index, wire[:, at:], w, k, fields, BITS=low, TILE=TILE)
    if number == RAW or k == 0:
        return
    high = index
    if number == ELIAS_FANO:
        high = torch.empty_like(index)
        launch(_raise, (block_count(k, TILE), b), index, high, k, low, TILE=TILE)
    launch(_write_bits, (block_count(size - fields, TILE), b), index, high, wire[:, at + fields :], w, k, size - fields,
           k.bit_length(), ELIAS_FANO=number == ELIAS_FANO, TILE=TILE)  # fmt: skip


def read_lists(run: Wires, at: int, n: int, k: int, code: str) -> Tensor:
    """``[count, b, k]`` int64: the lists whose code begins at byte ``at`` of each wire of a run.

    Raises:
        PayloadError: bytes that are not such a list; on an accelerator that is told later, and the list stays in [0, n).
    """
    number, low, size = layout(n, k, code)
    b, fields = run.first.shape[0], packed_bytes(k, low)
    lists = run.count * b
    index = torch.zeros(run.count, b, k, dtype=torch.int64, device=run.first.device)
    where = run.first[:, at:]
    if k == 0 or lists == 0:
        return index
    if number == RAW:
        launch(_read_fields, (block_count(k, TILE), lists), where, index, b, run.stride, run.row, k, fields,
               BITS=index_bits(n), TILE=TILE)  # fmt: skip
    else:
        width, marks = size - fields, Marks(index)
        tiles, bits = block_count(width, _BYTES), where[:, fields:]
        counts = index.new_empty(lists, tiles, dtype=torch.int32)
        launch(_count_bits, (tiles, lists), bits, counts, b, run.stride, run.row, width, tiles, TILE=_BYTES)
        begins, total = scan(counts)
        marks.words[0] = (total != k).any()
        marks.refuse(0, lambda: explain(WRONG_BITS, n, k))
        launch(_read_bits, (tiles, lists), bits, where, begins, index, b, run.stride, run.row, k, width, fields, tiles,
               LOW=low, ELIAS_FANO=number == ELIAS_FANO, TILE=_BYTES)  # fmt: skip
    _refuse_bad(index.view(lists, k), n)
    return index if on_host(index.device) else index.clamp_(0, n - 1)


def _refuse_bad(index: Tensor, n: int) -> None:
    """Refuses lists ``[b, k]`` of which one does not increase strictly, or leaves [0, n)."""
    (b, k), marks = index.shape, Marks(index, 2)
    launch(_check, (block_count(k, TILE), b), index, marks.words, n, k, TILE=TILE)
    marks.refuse(0, lambda: explain(NOT_INCREASING, n, k))
    marks.refuse(1, lambda: explain(OUT_OF_RANGE, n, k))
