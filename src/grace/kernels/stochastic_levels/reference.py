"""The specification of rounding to levels, in plain torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import grace.kernels.stochastic_levels as family
from grace import wire as wires
from grace.errors import PayloadError
from grace.flags.finite import Flag, and_, fill_unless_, flag
from grace.flags.refusals import refuse_unless
from grace.kernels.blocks import block_count, repeat_by_block
from grace.kernels.packing import pack, pack_trits, unpack, unpack_trits
from grace.kernels.spans import Span, split_spans
from grace.kernels.statistics import block_abs_max, block_norm, cut_to_deviations
from grace.kernels.stochastic_levels import Levels
from grace.kernels.stochastic_levels.codes import BAD_NORM, bad_code, code_bits, code_bytes
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.reference import encode_each, sum_each

if TYPE_CHECKING:
    from grace.random import Stream

_TINY, _SMALL, _UP = 2.0**-126, 2.0**-64, 2.0**60
_MOST_FLOAT32 = 127  # levels: with 16 bits more, float32 is exhausted


def quantize(
    rows: Tensor, levels: Levels, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, Flag]:
    (b, n), (s, block, norm, _), factor = rows.shape, levels, levels.factor(rows.shape[1])
    norms = rows.new_empty(b, block_count(n, block))
    codes = rows.new_empty(b, code_bytes(n, s), dtype=torch.uint8)
    finite: Flag = True
    for span in split_spans(b, n, block):
        part = rows[span.row, None, span.columns]  # [1, m]
        if memory is not None:
            part = part + memory[span.row, None, span.columns]
        finite = and_(finite, flag(part.isfinite().all()))
        size = (block_abs_max if norm == "linf" else block_norm)(part, block)  # [1, nb]
        code = _levels(part, size, s, block, rng.lanes(len(span), rows.device, span.first)).add_(s)
        packed = pack_trits(code) if s == 1 else pack(code, code_bits(s))
        sent = torch.where(size >= _TINY, size, 0.0).mul_(factor)
        norms[span.row, span.blocks], codes[span.row, _bytes(span, s)] = sent, packed
        if rest is not None:
            decoded = code.sub_(s).float().mul_(repeat_by_block(sent / s, len(span), block))
            torch.sub(part, decoded, out=rest[span.row, None, span.columns])
    return wires.join(norms, codes), finite


def dequantize_sum(
    received: Sequence[Tensor], out: Tensor, levels: Levels, weight: float, *, add: bool = False
) -> None:
    if not add:
        out.zero_()
    for wire in received:
        _add(wire, out, levels, weight)


def quantize_many(message: Tensor, many: TensorList, levels: Levels, step: int, clip: float = 0.0) -> Tensor:
    streams = [replace(stream, step=step) for stream in many.streams]

    def encode(t: int, x: Tensor, memory: Tensor | None, rest: Tensor | None) -> tuple[Tensor, Flag]:
        if not clip:
            return family.quantize(x, levels, streams[t], memory, rest)
        total = x.clone() if memory is None else x + memory
        finite = flag(total.isfinite().all())
        wire, _ = family.quantize(
            cut_to_deviations(fill_unless_(finite, total, 0.0), levels.block, clip), levels, streams[t]
        )
        if rest is not None:
            family.dequantize_sum([wire], rest.copy_(total), levels, -1.0, add=True)
        return wire, finite

    return encode_each(message, many, encode)


def dequantize_sum_many(rows: Tensor, many: TensorList, levels: Levels, weight: float) -> Tensor:
    widths = [levels.payload(n) for n in many.sizes]
    return sum_each(rows, many, widths, lambda received, out: family.dequantize_sum(received, out, levels, weight))


def block_divide(rows: Tensor, scale: Tensor, block: int) -> tuple[Tensor, Tensor]:
    scale = torch.where(scale < _TINY, 0.0, scale)
    wide = repeat_by_block(scale, rows.shape[1], block)
    return scale, torch.where(wide > 0, rows / wide.clamp_min(_TINY), 0.0)


def nearest(values: Tensor, book: Tensor) -> Tensor:
    middle = (book[1:].double() + book[:-1].double()).div_(2).float()
    return torch.bucketize(values, middle)


def stochastic_round(y: Tensor, u: Tensor) -> Tensor:
    near = y.round()
    low = y.floor()
    up = (u < y - low).to(y.dtype)
    return torch.where((y - near).abs() <= 1e-6 * y.clamp_min(1.0), near, low + up)


def _bytes(span: Span, s: int) -> slice:
    return span.trits if s == 1 else span.bits(code_bits(s))


def _levels(part: Tensor, norm: Tensor, s: int, block: int, lane: Tensor) -> Tensor:
    """Numbers ``[1, m]``, norms ``[1, nb]``, lanes ``[m]`` -> ``[1, m]`` integers in [-s, s].

    Rounding: as the factor is a quotient that was rounded once, N times it is off s 2**16 by less than a half; and numbers
    smaller than N do not exceed that.
    """
    m, zero = part.shape[1], norm < _TINY
    if s > _MOST_FLOAT32:  # more bits than a float32 has
        y = part.double() * repeat_by_block((s * 2.0**16 / norm.double()).masked_fill_(zero, 0.0), m, block)
        return _round(y.round_().to(torch.int64), lane)
    up = torch.where(norm < _SMALL, _UP, 1.0)  # else the factor could overflow
    factor = (s * 2.0**16 / (norm * up)).masked_fill_(zero, 0.0)
    y = part * repeat_by_block(up, m, block) * repeat_by_block(factor, m, block)
    return _round(y.round_().to(torch.int32), lane)


def _round(y: Tensor, lane: Tensor) -> Tensor:
    """Rounds ``y [1, m]``, in units of 2**-16: its magnitude up if its fraction exceeds the lane, else down."""
    return (y.abs().add_(0xFFFF - lane) >> 16).mul_(y.sign())


def _add(wire: Tensor, out: Tensor, levels: Levels, weight: float) -> None:
    (b, n), s, block = out.shape, levels.s, levels.block
    fields = [("norms", torch.float32, block_count(n, block)), ("codes", torch.uint8, code_bytes(n, s))]
    norms, codes = wires.split(wire, fields)
    refuse_unless(((norms >= 0) & (norms < math.inf)).all(), lambda: PayloadError(BAD_NORM))
    for span in split_spans(b, n, block):
        packed = codes[span.row, None, _bytes(span, s)]
        if s == 1:
            refuse_unless((packed <= 242).all(), lambda: PayloadError(bad_code(s)))
        code = unpack_trits(packed, len(span)) if s == 1 else unpack(packed, code_bits(s), len(span))
        refuse_unless((code <= 2 * s).all(), lambda: PayloadError(bad_code(s)))
        factor = (norms[span.row, None, span.blocks] / s).mul_(weight)
        out[span.row, None, span.columns].add_(code.float().sub_(s).mul_(repeat_by_block(factor, len(span), block)))
