"""The specification of rounding to powers of two, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grace import wire as wires
from grace.errors import PayloadError
from grace.flags.finite import Flag, flag
from grace.flags.refusals import refuse_unless
from grace.kernels.blocks import block_count, repeat_by_block
from grace.kernels.log2_quantization import BAD_CODE, BAD_HEAD, powers_bytes
from grace.kernels.packing import pack, packed_bytes, unpack
from grace.kernels.spans import split_spans
from grace.kernels.statistics import block_abs_max
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.reference import encode_each, sum_each

if TYPE_CHECKING:
    from grace.random import Stream

_TOP = 254  # the raw exponent of 2**127, the largest power of two
_OCTAVES = {4: 7, 8: 126, 9: _TOP}  # how many powers of two a code can stand for
_ONE = 1 << 23  # an octave of a float32's bits


def encode_powers(
    rows: Tensor, bits: int, block: int, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, Flag]:
    b, n = rows.shape
    ranged = bits != 9
    tops = rows.new_empty(b, block_count(n, block) if ranged else 0, dtype=torch.int8)
    codes = rows.new_empty(b, packed_bytes(n, bits), dtype=torch.uint8)
    total = rows if memory is None else rows + memory
    finite = flag(total.isfinite().all())
    if ranged:
        raw, fraction = _split(block_abs_max(total, block))
        tops.copy_((raw + (fraction > 0)).clamp_(1, _TOP) - 127)  # the largest number, rounded up
    for span in split_spans(b, n, block):
        part = total[span.row, None, span.columns]  # [1, m]
        top = tops[span.row, None, span.blocks] if ranged else None
        code = _encode(part, bits, block, top, rng.lanes(len(span), rows.device, span.first))
        codes[span.row, span.bits(bits)] = pack(code, bits)
        if rest is not None:
            torch.sub(part, _decode(code, bits, block, top)[0], out=rest[span.row, None, span.columns])
    return (wires.join(tops, codes) if ranged else codes), finite


def sum_powers(
    received: Sequence[Tensor], out: Tensor, bits: int, block: int, weight: float, *, add: bool = False
) -> None:
    if not add:
        out.zero_()
    for wire in received:
        _add(wire, out, bits, block, weight)


def _below(bits: int, block: int, top: Tensor | None, like: Tensor) -> Tensor:
    """int32 ``[1, m]``: the raw exponent that code 0 would have."""
    if top is None:
        return torch.zeros_like(like, dtype=torch.int32)
    return repeat_by_block(top.to(torch.int32) + (127 - _OCTAVES[bits]), like.shape[1], block)


def _encode(part: Tensor, bits: int, block: int, top: Tensor | None, lane: Tensor) -> Tensor:
    """Numbers ``[1, m]``, exponents ``[1, nb]``, lanes ``[m]`` -> codes int32 ``[1, m]``."""
    below = _below(bits, block, top, part)
    size = part.view(torch.int32) & 0x7FFFFFFF
    unit = torch.where(below >= 0, (253 - below) << 23, 0).view(torch.float32)  # makes the lowest power of the range 1
    inside = size >= (below + 1).clamp_min_(1) << 23
    small = torch.where(inside, 0.0, part.abs() * unit * 2.0**23).to(torch.int32)
    place = torch.where(inside, size - below * _ONE, small)  # from `below` on, an octave is 2**23
    level = ((place - (lane << 7) + (_ONE - 65)) >> 23).clamp_max_(_OCTAVES[bits])
    return level | ((part < 0) & (level > 0)).to(torch.int32) << (bits - 1)


def _decode(code: Tensor, bits: int, block: int, top: Tensor | None) -> tuple[Tensor, Tensor]:
    """Codes int32 ``[1, m]`` -> the numbers they stand for, float32 ``[1, m]``, and their raw exponents; 0 for none."""
    level = code & ((1 << (bits - 1)) - 1)
    raw = torch.where(level > 0, level + _below(bits, block, top, code), 0)
    size = (raw << 23).view(torch.float32)
    return torch.where(code >> (bits - 1) > 0, -size, size), torch.where(level > 0, raw, 1)


def _add(wire: Tensor, out: Tensor, bits: int, block: int, weight: float) -> None:
    b, n = out.shape
    ranged = [("exponents", torch.int8, block_count(n, block))] if bits != 9 else []
    *tops, packed = wires.split(wire, [*ranged, ("codes", torch.uint8, packed_bytes(n, bits))])
    for span in split_spans(b, n, block):
        code = unpack(packed[span.row, None, span.bits(bits)], bits, len(span)).to(torch.int32)
        fine = ((code & ((1 << (bits - 1)) - 1)) <= _OCTAVES[bits]).all()
        refuse_unless(fine, lambda: PayloadError(BAD_CODE))
        value, raw = _decode(code, bits, block, tops[0][span.row, None, span.blocks] if tops else None)
        refuse_unless(((raw >= 1) & (raw <= _TOP)).all(), lambda: PayloadError(BAD_HEAD))
        out[span.row, None, span.columns].add_(value.mul_(weight))


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    """The raw exponent (int32; 0 for zeros and subnormal numbers) and the mantissa's bits (int32) of each number."""
    word = x.view(torch.int32)
    raw = (word >> 23) & 0xFF
    return raw, torch.where(raw > 0, word & 0x7FFFFF, 0)


def encode_powers_many(message: Tensor, many: TensorList, bits: int, block: int, step: int) -> Tensor:
    streams = [replace(stream, step=step) for stream in many.streams]
    return encode_each(
        message, many, lambda t, x, memory, rest: encode_powers(x, bits, block, streams[t], memory, rest)
    )


def sum_powers_many(rows: Tensor, many: TensorList, bits: int, block: int, weight: float) -> Tensor:
    widths = [powers_bytes(n, bits, block) for n in many.sizes]
    return sum_each(rows, many, widths, lambda received, out: sum_powers(received, out, bits, block, weight))
