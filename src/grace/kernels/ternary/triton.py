"""Ternary numbers, five to a byte, and runs of zeros shortened, as Triton kernels.

A run may cross tiles. A code is written where its last byte is: there its length follows from the last byte before it that is
not of zeros. Of each tile that is noted when the bytes are made; a program looks for it in the tiles before its own. How many
codes end in each tile is counted and scanned, and then each program knows where its own go. A receiver scans lengths likewise;
what is between codes of other bytes is zeros.

A tile is 1,024 bytes where codes are written, as many codes where they are read, and 1,024 numbers where these are added up.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace import wire as wires
from grace.compute.host import host_int64
from grace.compute.launching import TILE, Marks, launch
from grace.kernels.statistics.triton import largest_of_many
from grace.kernels.tensor_list import TensorList, carry_together, pair_programs, spans_of
from grace.kernels.tensor_list.triton import numbers_of, tensor_of, tile_of, wire_of
from grace.kernels.ternary import QuarticCode, QuarticPlaces
from grace.kernels.ternary.parts import HEAD
from grace.kernels.triton import (
    count_at,
    digit_of,
    load_float,
    load_sum,
    mark_if,
    round_half_even,
    store_float,
    store_tile,
)
from grace.kernels.triton.bit_streams import scan
from grace.kernels.triton.tiles import left_of
from grace.kernels.variable_sparse.parts import Chosen

_FIVE = 5  # digits of a byte
_ZEROS = 121  # the byte of five zeros
_TINY = 2.0**-126


# ---- written --------------------------------------------------------------------------------------------------------
@triton.jit
def _quantize(
    table, programs, heads, like, scales, digits, lasts,
    PLACED: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_REST: tl.constexpr, EVEN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The bytes of each row, in its wire (PLACED) or side by side; then also ``lasts``, of each tile the last byte of its row
    that is not of zeros, -1 where there is none. ``scales [rows]``.
    """
    row, tile = tile_of(programs)
    x, start = numbers_of(table, row, like, EVEN)
    e, rest = tensor_of(table, row, 1, EVEN), tensor_of(table, row, 2, EVEN)
    place, n = wire_of(table, row)
    L = (n + 4) // 5
    scale = tl.load(scales + row)
    divisor = tl.where(scale > 0, scale, 1.0)
    lane, first = tl.arange(0, TILE), tile * TILE
    byte = tl.zeros((TILE,), tl.int32)
    for part in tl.static_range(0, 5):
        begin = start + part * L + first
        left = tl.minimum(left_of(n, part * L + first, TILE), left_of(L, first, TILE))
        p = load_sum(x + begin, e + begin, lane, lane < left, HAS_MEMORY, left == TILE)
        level = round_half_even(tl.where(scale > 0, tl.div_rn(p, tl.zeros_like(p) + divisor), 0.0))
        level = tl.where(lane < left, level, 0)
        byte = byte * 3 + level + 1
        if HAS_REST:
            store_tile(rest + begin + lane, p - level.to(tl.float32) * scale, lane < left, left == TILE)
    left = left_of(L, first, TILE)
    if PLACED:
        store_float(digits + place, scale, tile == 0)
        tl.store(digits + place + 4 + first + lane, byte.to(tl.uint8), lane < left)
    else:
        store_tile(digits + tl.load(heads + row) + first + lane, byte.to(tl.uint8), lane < left, left == TILE)
        last = tl.max(tl.where((byte != 121) & (lane < left), lane, -1), 0)
        tl.store(lasts + tl.program_id(0), tl.where(last < 0, -1, first + last).to(tl.int32))


@triton.jit
def _last_before(lasts, tile, CHUNK: tl.constexpr):
    """int32: the last byte of a row, in the tiles before this one, that is not of zeros; -1: there is none."""
    lane = tl.arange(0, CHUNK)
    end = tile
    last = (tile - tile - 1).to(tl.int32)
    while (end > 0) & (last < 0):
        end -= CHUNK
        last = tl.max(tl.load(lasts + end + lane, (end + lane >= 0) & (end + lane < tile), -1), 0)
    return last


@triton.jit
def _top_bit(word):
    """int32: the highest bit that is set in each uint32; of 0 some negative number."""
    word = word ^ (word & (word >> 1))  # without the bit below the highest, so that no higher power is near
    return (word.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127


@triton.jit
def _last_up_to(other, before, TILE: tl.constexpr):
    """int32 ``[TILE]``: of each lane the last one before it of which ``other [TILE]`` holds; else ``before``."""
    group, bit = tl.arange(0, TILE // 32), tl.arange(0, 32)[None, :]
    word = tl.sum(tl.reshape(other.to(tl.int32), (TILE // 32, 32)) << bit, 1).to(tl.uint32, bitcast=True)
    last = tl.where(word != 0, 32 * group + _top_bit(word), before)
    earlier = tl.broadcast_to(last[None, :], (TILE // 32, TILE // 32))
    earlier = tl.max(tl.where(group[None, :] < group[:, None], earlier, before), 1)
    lower = word[:, None] & ((1 << bit) - 1).to(tl.uint32, bitcast=True)
    return tl.reshape(tl.where(lower != 0, 32 * group[:, None] + _top_bit(lower), earlier[:, None]), (TILE,))


@triton.jit
def _codes(table, programs, heads, digits, lasts, TILE: tl.constexpr):
    """(the row, which of its tiles, int32: of each byte whether a code ends there, and which)"""
    row, tile = tile_of(programs)
    _place, n = wire_of(table, row)
    L = (n + 4) // 5
    first, lane = tile * TILE, tl.arange(0, TILE)
    left = tl.minimum(L - first, TILE + 1).to(tl.int32)
    at = digits + tl.load(heads + row) + first + lane
    byte = tl.load(at, lane < left, 0).to(tl.int32)
    following = tl.load(at + 1, lane + 1 < left, 0).to(tl.int32)
    before = _last_before(lasts + tl.program_id(0) - tile, tile, TILE) - first.to(tl.int32)
    length = (lane - _last_up_to(byte != 121, before, TILE) - 1) % 14  # of its code, less 1
    ends = (lane < left) & ((byte != 121) | (following != 121) | (length == 13))
    return row, tile, ends.to(tl.int32), tl.where((byte == 121) & (length > 0), 242 + length, byte)


@triton.jit
def _count(table, programs, heads, digits, lasts, counts, TILE: tl.constexpr):
    """Counts the codes that end in each tile."""
    _row, _tile, ends, _code = _codes(table, programs, heads, digits, lasts, TILE)
    tl.store(counts + tl.program_id(0), tl.sum(ends, 0))


@triton.jit
def _write(table, programs, heads, where, scales, digits, lasts, begins, total, message, TILE: tl.constexpr):
    """The wires, ``where [rows]`` they begin."""
    row, tile, ends, code = _codes(table, programs, heads, digits, lasts, TILE)
    at = message + tl.load(where + row)
    store_float(at, tl.load(scales + row), tile == 0)
    store_float(at + 4, tl.load(total + row).to(tl.float32, bitcast=True), tile == 0)
    o = tl.load(begins + tl.program_id(0)) + tl.cumsum(ends, 0) - 1
    tl.store(at + 8 + o, code.to(tl.uint8), ends > 0)


# ---- read -----------------------------------------------------------------------------------------------------------
@triton.jit
def _lengths(table, programs, where, widths, wires, stride, b, TILE: tl.constexpr):
    """(the row, where its wire begins, L, how many codes this wire has, at most L, and of each code of a tile what it is and
    for how many bytes it stands, int32)
    """
    row, tile = tile_of(programs)
    other = tl.program_id(1).to(tl.int64)
    _place, n = wire_of(table, row)
    L = (n + 4) // 5
    base = wires + other * stride + tl.load(where + row)
    room = tl.minimum(L, tl.load(widths + other * b + row) - 8)
    count = tl.minimum(tl.maximum(count_at(base + 4).to(tl.int64), 0), room)
    lane, left = tl.arange(0, TILE), left_of(count, tile * TILE, TILE)
    code = tl.load(base + 8 + tile * TILE + lane, lane < left, 0).to(tl.int32)
    length = tl.where(lane < left, tl.maximum(code - 241, 1), 0)
    return row, base, L, count, code, length


@triton.jit(do_not_specialize=["stride", "b"])
def _measure(table, programs, where, widths, wires, counts, marks, stride, b, TILE: tl.constexpr):
    """For how many bytes the codes of each tile stand. Marks counts and scales that no sender writes."""
    row, base, _L, count, _code, length = _lengths(table, programs, where, widths, wires, stride, b, TILE)
    scale = load_float(base, count >= 0)
    fine = (count_at(base + 4) == count) & (scale >= 0) & (scale < float("inf"))
    tl.store(marks + row, 0, fine == 0)
    this = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    tl.store(counts + this, tl.sum(length, 0))


@triton.jit(do_not_specialize=["stride", "b", "plane"])
def _lengthen(
    table, programs, heads, where, widths, wires, begins, total, digits, marks, stride, b, plane, TILE: tl.constexpr
):
    """The bytes of each wire that are not of zeros, to their places in ``digits [W, plane]``. Marks wires of another number
    of bytes.
    """
    row, _base, L, _count, code, length = _lengths(table, programs, where, widths, wires, stride, b, TILE)
    other = tl.program_id(1).to(tl.int64)
    this = other * tl.num_programs(0) + tl.program_id(0)
    tl.store(marks + row, 0, tl.load(total + other * b + row) != L)
    o = tl.load(begins + this) + tl.cumsum(length, 0) - length
    keep = (length > 0) & (code <= 242) & (o >= 0) & (o < L)
    tl.store(digits + other * plane + tl.load(heads + row) + o, code.to(tl.uint8), keep)


@triton.jit(do_not_specialize=["W", "stride", "plane", "weight"])
def _sum(
    table, programs, heads, where, like, wires, digits, marks, W, stride, plane, weight,
    PLACED: tl.constexpr, EVEN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Sums of what wires say, whose bytes are in them (PLACED), and are checked, or in ``digits [W, plane]``."""
    row, tile = tile_of(programs)
    out, start = numbers_of(table, row, like, EVEN)
    place, n = wire_of(table, row)
    L, first = (n + 4) // 5, tile * TILE
    lane, left = tl.arange(0, TILE), left_of(n, first, TILE)
    part = tl.zeros((TILE,), tl.int32)
    for border in tl.static_range(1, 5):
        part += (lane >= tl.maximum(tl.minimum(border * L - first, TILE), 0).to(tl.int32)).to(tl.int32)
    if PLACED:
        at, base, step = wires + place + 4, wires + place, stride
    else:
        at, base, step = digits + tl.load(heads + row), wires + tl.load(where + row), plane
    at = at + first + lane - part * L
    total = tl.zeros((TILE,), tl.float32)
    most, wrong = tl.zeros((TILE,), tl.int32), tl.zeros((1,), tl.int32)
    for _ in range(W):
        scale = load_float(base + tl.zeros((1,), tl.int32), tl.full((1,), 1, tl.int1))
        byte = tl.load(at, lane < left, 0).to(tl.int32)
        if PLACED:
            wrong = tl.maximum(wrong, (((scale >= 0) & (scale < float("inf"))) == 0).to(tl.int32))
            most = tl.maximum(most, byte)
        total += (digit_of(byte, 4 - part) - 1).to(tl.float32) * scale * weight
        base += stride
        at += step
    if PLACED:
        mark_if(marks + row, wrong > 0)
        mark_if(marks + row, most > 242)
    store_tile(out + start + first + lane, total, lane < left, left == TILE)


# ---- launched -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Ternary:
    """The ternary digits, as they are written. scales float32 ``[T]``; digits uint8, the bytes of all tensors side by side;
    lasts int32, of each tile of these its last byte that is not of zeros; begins: how many codes end before; total int32
    ``[T]``: how many there are.
    """

    scales: Tensor
    digits: Tensor
    lasts: Tensor
    begins: Tensor
    total: Tensor


class _QuarticPlacesThere:
    """Positions of wires, and the programs that read them, on the device: one copy for each step.

    where: int64 ``[T]``, the byte where each wire begins. widths: int64 ``[W, T]``. read, spans: the programs.
    """

    def __init__(self, places: QuarticPlaces, many: TensorList):
        widths = host_int64(places.widths)
        read = -(-(widths.amax(dim=0) - HEAD) // TILE)
        self.where, self.widths, self.spans, self.read = carry_together(
            (host_int64(places.begins) + wires.HEADER, widths, spans_of(read), pair_programs(read)), many.device
        )

    @staticmethod
    def of(places: QuarticPlaces, many: TensorList) -> _QuarticPlacesThere:
        """The device's copy of these places, which is made once."""
        return places.once(lambda: _QuarticPlacesThere(places, many))


def choose_quartic_many(like: Tensor, many: TensorList, code: QuarticCode) -> Chosen:
    tiles = many.tiles(TILE, block=_FIVE)
    digits = torch.empty(sum(many.counts(_FIVE)), dtype=torch.uint8, device=many.device)
    lasts = torch.empty(len(tiles), dtype=torch.int32, device=many.device)
    scales, finite = _quantized(many, code.s, digits, lasts, placed=False)
    counts, where = torch.empty_like(lasts)[None], (many.table, tiles, many.heads(_FIVE))
    launch(_count, (len(tiles),), *where, digits, lasts, counts, TILE=TILE)
    spans = many.spans(("quartic", TILE), lambda: [-(-L // TILE) for L in many.counts(_FIVE)])
    begins, total = scan(counts, spans)
    return Chosen(HEAD + total[0].long(), finite, Ternary(scales, digits, lasts, begins, total))


def _quantized(
    many: TensorList, s: float, digits: Tensor, lasts: Tensor | None, *, placed: bool
) -> tuple[Tensor, Tensor]:
    """Writes the bytes, and rests: the scales ``[rows]``, and ``[T]`` bool, which tensors are finite."""
    top = largest_of_many(many, max(many.sizes))
    finite = top.isfinite().view(-1, many.rows).all(dim=1, keepdim=True)
    scales = (top * s).clamp_max_(torch.finfo(torch.float32).max)
    scales.masked_fill_((scales < _TINY) | ~finite.expand(-1, many.rows).reshape(-1), 0.0)
    tiles = many.tiles(TILE, block=_FIVE)
    launch(_quantize, (len(tiles),), many.table, tiles, many.heads(_FIVE), many.like, scales, digits, lasts, PLACED=placed,
           HAS_MEMORY=many.memories is not None, HAS_REST=many.rests is not None, EVEN=many.even, TILE=TILE)  # fmt: skip
    return scales, finite[:, 0]


def write_quartic_many(
    message: Tensor, many: TensorList, code: QuarticCode, chosen: Chosen, places: QuarticPlaces
) -> None:
    tiles, notes, where = many.tiles(TILE, block=_FIVE), chosen.notes, _QuarticPlacesThere.of(places, many).where
    launch(_write, (len(tiles),), many.table, tiles, many.heads(_FIVE), where, notes.scales, notes.digits, notes.lasts,
           notes.begins, notes.total, message, TILE=TILE)  # fmt: skip


def sum_quartic_many(rows: Tensor, many: TensorList, code: QuarticCode, places: QuarticPlaces, weight: float) -> Tensor:
    layout, marks, heads = _QuarticPlacesThere.of(places, many), Marks(rows, len(many)), many.heads(_FIVE)
    (W, _), T, plane = rows.shape, len(many), sum(many.counts(_FIVE))
    grid = len(layout.read), W
    counts = torch.empty(W, len(layout.read), dtype=torch.int32, device=rows.device)
    read = layout.where, layout.widths, rows
    launch(_measure, grid, many.table, layout.read, *read, counts, marks.clean, rows.stride(0), T, TILE=TILE)
    begins, total = scan(counts, layout.spans)
    digits = torch.full((W, plane), _ZEROS, dtype=torch.uint8, device=many.device)
    launch(_lengthen, grid, many.table, layout.read, heads, *read, begins, total, digits, marks.clean, rows.stride(0), T,
           plane, TILE=TILE)  # fmt: skip
    _add_up(rows, many, layout.where, digits, marks, weight, placed=False)
    return many.all_of(marks.clean)


def _add_up(
    rows: Tensor,
    many: TensorList,
    where: Tensor | None,
    digits: Tensor | None,
    marks: Marks,
    weight: float,
    *,
    placed: bool,
) -> None:
    tiles, plane = many.tiles(TILE), 0 if digits is None else digits.shape[1]
    launch(_sum, (len(tiles),), many.table, tiles, many.heads(_FIVE), where, many.like, rows, digits, marks.clean, len(rows),
           rows.stride(0), plane, weight, PLACED=placed, EVEN=many.even, TILE=TILE)  # fmt: skip


def encode_ternary_many(message: Tensor, many: TensorList, s: float) -> Tensor:
    return _quantized(many, s, message, None, placed=True)[1]


def sum_ternary_many(rows: Tensor, many: TensorList, weight: float) -> Tensor:
    marks = Marks(rows, len(many))
    _add_up(rows, many, None, None, marks, weight, placed=True)
    return many.all_of(marks.clean)
