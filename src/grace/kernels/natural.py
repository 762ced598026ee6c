"""Stochastic rounding to powers of two, in codes of a sign and an octave.

A wire ``[b, w]`` holds a row's exponents (int8 ``[nb]``: the largest magnitude of a block is at most 2**e; none for 9 bits),
then its codes, packed. The torch functions below specify what the native kernel does, to the bit, for 8 and 4 bits.

Letters: b rows of n numbers; blocks of B numbers, nb = ceil(n/B) of them per row, the last one shorter; W workers.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from grace import backends, native
from grace import wire as wires
from grace.errors import PayloadError
from grace.kernels import check
from grace.kernels.encoding import LAYOUTS, Layout, encode
from grace.kernels.reference import block_abs_max, block_count, pack, packed_bytes, spread, unpack
from grace.kernels.spans import spans
from grace.random import Stream

_TOP = 254  # the raw exponent of 2**127, the largest power of two
_OCTAVES = {4: 7, 8: 126, 9: _TOP}  # how many powers of two a code can say
_ONE = 1 << 23  # an octave of a float32's bits
_ENCODE = native.declare(
    "natural",
    *(native.P, native.P, native.P, native.N, native.N, native.N, native.P, native.N),
    *(native.I, native.U, native.U, native.U, native.I),
)
_DECODE = native.declare(
    "natural_sum",
    *(native.P, native.N, native.P, native.N, native.N, native.I, native.F, native.I, native.I),
)
_BAD_CODE = "field 'codes' must be in the range of their block"
_BAD_HEAD = "field 'exponents' puts a code outside the range of float32"


def natural_bytes(n: int, bits: int, block: int) -> int:
    """Bytes of the wire of n numbers."""
    return packed_bytes(n, bits) + (block_count(n, block) if bits != 9 else 0)


def natural(
    rows: Tensor, bits: int, block: int, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, bool]:
    """``p = rows + memory`` -> (wire ``[b, w]`` uint8, whether p was finite).

    ``|p_i| = 2**e (1 + m)`` becomes ``2**(e + 1)`` if ``m > u_i``, else ``2**e``; below its block's range the lowest power of
    it if ``|p_i|`` is more than u_i of that, else 0; u_i is number i of the stream, counted over all rows. ``rest``, which may
    be ``rows``, becomes p minus what the wire says. If p is not finite, wire and rest mean nothing.

    Rows, memory and rest are float32 ``[b, n]``, contiguous; bits is 4, 8 or 9, block >= 1.
    """
    fast = backends.function(_ENCODE) if bits != 9 and rows.is_cpu else None
    if fast is None:
        return _natural(rows, bits, block, rng, memory, rest)
    _, n = rows.shape
    return encode(fast, _layout(n, bits, block), rows, memory, rest, *rng.native_key())


@functools.lru_cache(LAYOUTS)
def _layout(n: int, bits: int, block: int) -> Layout:
    return Layout(natural_bytes(n, bits, block), n, block, native.I(bits))


def natural_sum(
    received: Sequence[Tensor], out: Tensor, bits: int, block: int, weight: float, *, add: bool = False
) -> None:
    """Out ``[b, n]`` = (or, with ``add``, +=) weight times the sum of what the wires ``[b, w]`` say, in their order.

    Raises:
        PayloadError: a length, exponent or code that no sender writes; ``out`` is then undefined.
    """
    b, n = out.shape
    fast = backends.function(_DECODE) if bits != 9 and out.device.type == "cpu" else None
    if fast is None:
        if not add:
            out.zero_()
        for wire in received:
            _natural_add(wire, out, bits, block, weight)
        return
    W, at = len(received), check.numbers("out", out)
    addresses = check.wire_rows(received, b, natural_bytes(n, bits, block))
    for row in range(b):
        mine = check.pointers(addresses[row * W : (row + 1) * W])
        refused = fast(mine, W, at + 4 * n * row, n, block, bits, weight, add, native.threads())
        if refused:
            raise PayloadError(_BAD_HEAD if refused == native.BAD_HEAD else _BAD_CODE)


# ---- the specification ----------------------------------------------------------------------------------------------
def _natural(
    rows: Tensor, bits: int, block: int, rng: Stream, memory: Tensor | None, rest: Tensor | None
) -> tuple[Tensor, bool]:
    b, n = rows.shape
    ranged = bits != 9
    tops = rows.new_empty(b, block_count(n, block) if ranged else 0, dtype=torch.int8)
    codes = rows.new_empty(b, packed_bytes(n, bits), dtype=torch.uint8)
    whole = rows if memory is None else rows + memory
    finite = bool(whole.isfinite().all())
    if ranged:
        raw, fraction = _parts(block_abs_max(whole, block))
        tops.copy_((raw + (fraction > 0)).clamp_(1, _TOP) - 127)  # the largest number, rounded up
    for span in spans(b, n, block):
        part = whole[span.row, None, span.columns]  # [1, m]
        top = tops[span.row, None, span.blocks] if ranged else None
        code = _codes(part, bits, block, top, rng.lanes(len(span), rows.device, span.first))
        codes[span.row, span.bits(bits)] = pack(code, bits)
        if rest is not None:
            torch.sub(part, _values(code, bits, block, top)[0], out=rest[span.row, None, span.columns])
    return (wires.join(tops, codes) if ranged else codes), finite


def _below(bits: int, block: int, top: Tensor | None, like: Tensor) -> Tensor:
    """int32 ``[1, m]``: the raw exponent that code 0 would have."""
    if top is None:
        return torch.zeros_like(like, dtype=torch.int32)
    return spread(top.to(torch.int32) + (127 - _OCTAVES[bits]), like.shape[1], block)


def _codes(part: Tensor, bits: int, block: int, top: Tensor | None, lane: Tensor) -> Tensor:
    """Numbers ``[1, m]``, exponents ``[1, nb]``, lanes ``[m]`` -> codes int32 ``[1, m]``."""
    below = _below(bits, block, top, part)
    size = part.view(torch.int32) & 0x7FFFFFFF
    unit = torch.where(below >= 0, (253 - below) << 23, 0).view(torch.float32)  # makes the lowest power of the range 1
    inside = size >= (below + 1).clamp_min_(1) << 23
    small = torch.where(inside, 0.0, part.abs() * unit * 2.0**23).to(torch.int32)
    place = torch.where(inside, size - below * _ONE, small)  # from `below` on, an octave is 2**23
    level = ((place - (lane << 7) + (_ONE - 65)) >> 23).clamp_max_(_OCTAVES[bits])
    return level | ((part < 0) & (level > 0)).to(torch.int32) << (bits - 1)


def _values(code: Tensor, bits: int, block: int, top: Tensor | None) -> tuple[Tensor, Tensor]:
    """Codes int32 ``[1, m]`` -> what they stand for, float32 ``[1, m]``, and the raw exponents of that; 0 for none."""
    level = code & ((1 << (bits - 1)) - 1)
    raw = torch.where(level > 0, level + _below(bits, block, top, code), 0)
    size = (raw << 23).view(torch.float32)
    return torch.where(code >> (bits - 1) > 0, -size, size), torch.where(level > 0, raw, 1)


def _natural_add(wire: Tensor, out: Tensor, bits: int, block: int, weight: float) -> None:
    b, n = out.shape
    ranged = [("exponents", torch.int8, block_count(n, block))] if bits != 9 else []
    *tops, packed = wires.split(wire, [*ranged, ("codes", torch.uint8, packed_bytes(n, bits))])
    for span in spans(b, n, block):
        code = unpack(packed[span.row, None, span.bits(bits)], bits, len(span)).to(torch.int32)
        if bool(((code & ((1 << (bits - 1)) - 1)) > _OCTAVES[bits]).any()):
            raise PayloadError(_BAD_CODE)
        value, raw = _values(code, bits, block, tops[0][span.row, None, span.blocks] if tops else None)
        if bool(((raw < 1) | (raw > _TOP)).any()):
            raise PayloadError(_BAD_HEAD)
        out[span.row, None, span.columns].add_(value.mul_(weight))


def _parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """The raw exponent (int32; 0 for zeros and subnormal numbers) and the mantissa's bits (int32) of each number."""
    word = x.view(torch.int32)
    raw = (word >> 23) & 0xFF
    return raw, torch.where(raw > 0, word & 0x7FFFFF, 0)
