"""Numbers of as many bits as their tags say, as Triton kernels.

Where a number's bits are follows from how many before it have its tag: programs count in their tiles, a scan adds tiles up,
and each program adds the rest. That is so where wires are written and where they are read. A tile is 1,024 numbers at most:
the three counts of what is before a number in its tile then fit into one integer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace import wire as wires
from grace.compute.host import host_int64
from grace.compute.launching import TILE, Marks, launch
from grace.kernels.selection.triton.candidates import MOST
from grace.kernels.statistics.triton import largest_of_many
from grace.kernels.tagged_fixed_point import TaggedCode, TaggedPlaces
from grace.kernels.tensor_list import TensorList, carry_together
from grace.kernels.tensor_list.triton import code_width, numbers_of, tensor_of, tile_of, wire_of
from grace.kernels.triton import (
    any_power_of_two,
    load_float,
    load_sum,
    magnitude,
    mark_if,
    negated,
    store_codes,
    store_float,
    store_tile,
)
from grace.kernels.triton.bit_streams import scan
from grace.kernels.triton.tiles import left_of, load_codes
from grace.kernels.variable_sparse.parts import Chosen


@triton.jit
def _count_tags(at, plane, tag):
    """Counts the numbers of a tile with each of the tags 1, 2 and 3, ``plane`` further each time."""
    tl.store(at, tl.sum((tag == 1).to(tl.int32), 0))
    tl.store(at + plane, tl.sum((tag == 2).to(tl.int32), 0))
    tl.store(at + 2 * plane, tl.sum((tag == 3).to(tl.int32), 0))


@triton.jit
def _bytes_at(tag, begins, plane, total, b):
    """int64: how far behind the tags each number's bits are, where its tag is 1, 2 and 3, and the bytes of all numbers of a
    row. ``begins``, ``total``: of tag 1, and of others ``plane`` and b further.
    """
    own = tl.where(tag > 0, 1 << (10 * tl.maximum(tag - 1, 0)), 0)
    before = tl.cumsum(own, 0) - own  # ten bits for each tag
    few, many, raw = tl.load(total).to(tl.int64), tl.load(total + b).to(tl.int64), tl.load(total + 2 * b).to(tl.int64)
    byte_at = tl.load(begins) + (before & 1023)
    word_at = few + 2 * (tl.load(begins + plane) + ((before >> 10) & 1023)).to(tl.int64)
    raw_at = few + 2 * many + 4 * (tl.load(begins + 2 * plane) + (before >> 20)).to(tl.int64)
    return byte_at, word_at, raw_at, few + 2 * many + 4 * raw


@triton.jit
def _value_of(code, BITS: tl.constexpr, unit):
    """float32: a sign above BITS bits of magnitude, in units."""
    size = (code & ((1 << BITS) - 1)).to(tl.float32)
    return tl.where((code >> BITS) > 0, negated(size), size) * unit


# ---- written --------------------------------------------------------------------------------------------------------
@triton.jit
def _tags(
    table, programs, like, tops, P: tl.constexpr, RELATIVE: tl.constexpr, HAS_MEMORY: tl.constexpr, EVEN: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """(the row, n, the first number of its tile, int32: the exponent of its unit, its sums, their magnitudes in units, their
    tags). ``tops [T]``: the largest magnitudes, 0 of rows that are not finite, all of whose numbers are taken for 0.
    """
    row, tile = tile_of(programs)
    x, _start = numbers_of(table, row, like, EVEN)
    _place, n = wire_of(table, row)
    first, lane = tile * TILE, tl.arange(0, TILE)
    left = left_of(n, first, TILE)
    e = tensor_of(table, row, 1, EVEN)
    p = load_sum(x + first, e + first, lane, lane < left, HAS_MEMORY, left == TILE)
    top = magnitude(tl.load(tops + row))
    exponent = top - top
    if RELATIVE:
        exponent = tl.maximum(tl.minimum((top >> 23) - 126 - ((top & 0x7FFFFF) == 0).to(tl.int32), 127), -126)
        exponent = tl.where(top > 0, exponent, 0)
    p = tl.where(top > 0, p, 0.0)
    size = tl.abs(p) * any_power_of_two(-exponent)
    tag = (size >= 1.0 / (1 << P)).to(tl.int32) + (size >= 1.0 / (1 << (P // 2))).to(tl.int32)
    return row, n, first, exponent, p, size, tag + (size >= 1.0).to(tl.int32)


@triton.jit
def _tally(
    table, programs, like, tops, counts, P: tl.constexpr, RELATIVE: tl.constexpr, HAS_MEMORY: tl.constexpr,
    EVEN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """``counts [3, programs]``: how many numbers of each tile have each tag."""
    _row, _n, _first, _exponent, _p, _size, tag = _tags(
        table, programs, like, tops, P, RELATIVE, HAS_MEMORY, EVEN, TILE
    )
    _count_tags(counts + tl.program_id(0), tl.num_programs(0), tag)


@triton.jit(do_not_specialize=["b"])
def _write(
    table, programs, where, like, tops, begins, total, message, b,
    P: tl.constexpr, RELATIVE: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_REST: tl.constexpr, EVEN: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """The wires, ``where [T]`` they begin, and rests."""
    row, n, first, exponent, p, size, tag = _tags(table, programs, like, tops, P, RELATIVE, HAS_MEMORY, EVEN, TILE)
    base = message + tl.load(where + row)
    if RELATIVE:
        tl.store(base, (exponent & 0xFF).to(tl.uint8), first == 0)
    width = code_width(n, 2)
    store_codes(base + RELATIVE, tl.reshape(tag, (TILE // 8, 8)), first, n, width, 2, TILE // 8)
    body = base + RELATIVE + width
    byte_at, word_at, raw_at, _size = _bytes_at(tag, begins + tl.program_id(0), tl.num_programs(0), total + row, b)
    sign = (p < 0).to(tl.int32)
    low = (tl.where(tag == 1, size, 0.0) * (1 << (7 + P // 2))).to(tl.int32) | (sign << 7)
    high = (tl.where(tag == 2, size, 0.0) * 32768.0).to(tl.int32) | (sign << 15)
    tl.store(body + byte_at, low.to(tl.uint8), tag == 1)
    tl.store(body + word_at, (high & 0xFF).to(tl.uint8), tag == 2)
    tl.store(body + word_at + 1, (high >> 8).to(tl.uint8), tag == 2)
    store_float(body + raw_at, p, tag == 3)
    if HAS_REST:
        sent = tl.where(tag == 3, p, 0.0)
        sent = tl.where(tag == 2, _value_of(high, 15, any_power_of_two(exponent - 15)), sent)
        sent = tl.where(tag == 1, _value_of(low, 7, any_power_of_two(exponent - 7 - P // 2)), sent)
        lane, left = tl.arange(0, TILE), left_of(n, first, TILE)
        store_tile(tensor_of(table, row, 2, EVEN) + first + lane, p - sent, lane < left, left == TILE)


# ---- read -----------------------------------------------------------------------------------------------------------
@triton.jit(do_not_specialize=["stride"])
def _count(table, programs, where, wires, counts, stride, RELATIVE: tl.constexpr, TILE: tl.constexpr):
    """``counts [W, 3, programs]``: how many numbers of each tile have each tag."""
    row, tile = tile_of(programs)
    other, plane = tl.program_id(1).to(tl.int64), tl.num_programs(0)
    _place, n = wire_of(table, row)
    lane, first = tl.arange(0, TILE), tile * TILE
    at = wires + other * stride + tl.load(where + row) + RELATIVE
    tag, _good = load_codes(at, first, lane, lane < left_of(n, first, TILE), code_width(n, 2), 2)
    _count_tags(counts + 3 * other * plane + tl.program_id(0), plane, tag)


@triton.jit(do_not_specialize=["W", "stride", "b", "weight"])
def _sum(
    table, programs, where, widths, like, wires, begins, total, marks, W, stride, b, weight,
    P: tl.constexpr, RELATIVE: tl.constexpr, EVEN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Sums of what wires say. Marks wires that are shorter than their tags say, and exponents and numbers that no sender
    writes.
    """
    row, tile = tile_of(programs)
    out, _start = numbers_of(table, row, like, EVEN)
    _place, n = wire_of(table, row)
    lane, first, plane = tl.arange(0, TILE), tile * TILE, tl.num_programs(0)
    left, ahead = left_of(n, first, TILE), code_width(n, 2)
    base, begins, total = wires + tl.load(where + row), begins + tl.program_id(0), total + row
    result, wrong = tl.zeros((TILE,), tl.float32), tl.zeros((TILE,), tl.int32)
    widths += row
    for _ in range(W):
        exponent = tl.zeros((1,), tl.int32)
        if RELATIVE:
            exponent += tl.load(base).to(tl.int32)
            exponent = tl.where(exponent > 127, exponent - 256, exponent)
        tag, _good = load_codes(base + RELATIVE, first, lane, lane < left, ahead, 2)
        byte_at, word_at, raw_at, size = _bytes_at(tag, begins, plane, total, b)
        room = tl.load(widths) - RELATIVE - ahead
        body = base + RELATIVE + ahead
        low = tl.load(body + byte_at, (tag == 1) & (byte_at < room), 0).to(tl.int32)
        there = (tag == 2) & (word_at + 1 < room)
        high = tl.load(body + word_at, there, 0).to(tl.int32) | (
            tl.load(body + word_at + 1, there, 0).to(tl.int32) << 8
        )
        raw = load_float(body + raw_at, (tag == 3) & (raw_at + 3 < room))
        wrong |= ((size > room) | (exponent < -126) | (magnitude(raw) >= 0x7F800000)).to(tl.int32)
        value = tl.where(tag == 3, raw, 0.0)
        value = tl.where(tag == 2, _value_of(high, 15, any_power_of_two(exponent - 15)), value)
        value = tl.where(tag == 1, _value_of(low, 7, any_power_of_two(exponent - 7 - P // 2)), value)
        result += value * weight
        base += stride
        begins += 3 * plane
        total += 3 * b
        widths += b
    mark_if(marks + row, wrong > 0)
    store_tile(out + first + lane, result, lane < left, left == TILE)


# ---- launched -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Tagged:
    """The tagged numbers, as they are written. tops float32 ``[T]``: the largest magnitudes, 0 of what is not finite;
    begins int32 ``[3, programs]``: how many numbers before a tile have each tag, and total ``[3, T]``: how many of each
    row.
    """

    tops: Tensor
    begins: Tensor
    total: Tensor


class _TaggedPlacesThere:
    """Positions of wires on the device: one copy for each step.

    where: int64 ``[T]``, the byte where each wire begins. widths: int64 ``[W, T]``.
    """

    def __init__(self, places: TaggedPlaces, many: TensorList):
        parts = host_int64(places.begins) + wires.HEADER, host_int64(places.widths)
        self.where, self.widths = carry_together(parts, many.device)

    @staticmethod
    def of(places: TaggedPlaces, many: TensorList) -> _TaggedPlacesThere:
        """The device's copy of these places, which is made once."""
        return places.once(lambda: _TaggedPlacesThere(places, many))


def _spans(many: TensorList) -> Tensor:
    return many.spans(("tiles", TILE), lambda: [-(-n // TILE) for n in many.sizes])


def _reading(many: TensorList, code: TaggedCode) -> dict[str, Any]:
    """The compile-time constants of the kernels that read sums."""
    return {"P": code.p, "RELATIVE": int(code.relative), "HAS_MEMORY": many.memories is not None, "EVEN": many.even}


def choose_tagged_many(like: Tensor, many: TensorList, code: TaggedCode) -> Any:
    if max(many.sizes) > MOST:
        return NotImplemented
    tops, tiles = largest_of_many(many, max(many.sizes)), many.tiles(TILE)
    finite = tops.isfinite()
    tops.masked_fill_(~finite, 0.0)
    counts = torch.empty(3, len(tiles), dtype=torch.int32, device=many.device)
    launch(_tally, (len(tiles),), many.table, tiles, many.like, tops, counts, **_reading(many, code), TILE=TILE)
    begins, total = scan(counts, _spans(many))
    fixed = many.numbers((TaggedCode, code), lambda: [code.fixed(n) for n in many.sizes], torch.int64)
    few, some, raw = total.long()
    return Chosen(fixed + few + 2 * some + 4 * raw, finite, Tagged(tops, begins, total))


def write_tagged_many(message: Tensor, many: TensorList, code: TaggedCode, chosen: Chosen, places: TaggedPlaces) -> Any:
    if not isinstance(chosen.notes, Tagged):
        return NotImplemented
    tiles, notes, where = many.tiles(TILE), chosen.notes, _TaggedPlacesThere.of(places, many).where
    launch(_write, (len(tiles),), many.table, tiles, where, many.like, notes.tops, notes.begins, notes.total, message,
           len(many), **_reading(many, code), HAS_REST=many.rests is not None, TILE=TILE)  # fmt: skip
    return None


def sum_tagged_many(rows: Tensor, many: TensorList, code: TaggedCode, places: TaggedPlaces, weight: float) -> Any:
    if max(many.sizes) > MOST:
        return NotImplemented
    layout, marks, tiles, W = _TaggedPlacesThere.of(places, many), Marks(rows, len(many)), many.tiles(TILE), len(rows)
    counts, relative = torch.empty(3 * W, len(tiles), dtype=torch.int32, device=rows.device), int(code.relative)
    launch(_count, (len(tiles), W), many.table, tiles, layout.where, rows, counts, rows.stride(0), RELATIVE=relative,
           TILE=TILE)  # fmt: skip
    begins, total = scan(counts, _spans(many))
    launch(_sum, (len(tiles),), many.table, tiles, layout.where, layout.widths, many.like, rows, begins, total, marks.clean, W,
           rows.stride(0), len(many), weight, P=code.p, RELATIVE=relative, EVEN=many.even, TILE=TILE)  # fmt: skip
    return many.all_of(marks.clean)
