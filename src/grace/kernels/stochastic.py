"""Stochastic quantization to s levels on each side of zero, relative to the largest magnitude or the norm of a block.

A wire ``[b, w]`` holds a row's norms (float32 ``[nb]``), then its codes + s, packed: base 3 for s = 1, else as few bits as
2 s + 1 values need. The torch functions below specify what the native kernel does, to the bit, for up to 8 bits.

Letters: b rows of n numbers; blocks of B numbers, nb = ceil(n/B) of them per row, the last one shorter; W workers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from grace import backends, native
from grace import wire as wires
from grace.errors import PayloadError
from grace.kernels import check
from grace.kernels.encoding import LAYOUTS, Layout, encode
from grace.kernels.reference import (
    block_abs_max,
    block_count,
    block_norm,
    pack,
    pack_trits,
    packed_bytes,
    packed_trits_bytes,
    spread,
    unpack,
    unpack_trits,
)
from grace.kernels.spans import Span, spans

if TYPE_CHECKING:
    from grace.random import Stream

_TINY, _SMALL, _UP = 2.0**-126, 2.0**-64, 2.0**60
_MOST_NATIVE = 127  # levels: 8 bits
_ENCODE = native.declare(
    "quantize",
    *(native.P, native.P, native.P, native.N, native.N, native.N, native.P, native.N),
    *(native.I, native.I, native.I, native.F, native.U, native.U, native.U, native.I),
)
_DECODE = native.declare(
    "dequantize_sum",
    *(native.P, native.N, native.P, native.N, native.N, native.I, native.I, native.F, native.I, native.I),
)


def quantized_bytes(n: int, s: int, block: int) -> int:
    """Bytes of the wire of n numbers."""
    return 4 * block_count(n, block) + _code_bytes(n, s)


def quantize(
    rows: Tensor,
    s: int,
    block: int,
    norm: Literal["linf", "l2"],
    shrink: float,
    rng: Stream,
    memory: Tensor | None = None,
    rest: Tensor | None = None,
) -> tuple[Tensor, bool]:
    """``p = rows + memory`` -> (wire ``[b, w]`` uint8, whether p was finite).

    Number i of p becomes ``floor(y)``, or one more if ``y - floor(y) > u_i``, with its sign; ``y = s |p_i| / N`` is rounded to
    a multiple of 2**-16 (and is s for N itself), N is the norm of its block, and u_i is 2**-16 times lane i of the stream,
    counted over all rows. What travels is ``shrink`` N, 0 where N < 2**-126. ``rest``, which may be ``rows``, becomes p minus
    what the wire says. If p is not finite, wire and rest mean nothing.

    Rows, memory and rest are float32 ``[b, n]``, contiguous; s is 1 to 32767, block >= 1.
    """
    fast = backends.function(_ENCODE) if s <= _MOST_NATIVE and rows.is_cpu else None
    if fast is None:
        return _quantize(rows, s, block, norm, shrink, rng, memory, rest)
    _, n = rows.shape
    return encode(fast, _layout(n, s, block, norm, shrink), rows, memory, rest, *rng.native_key())


@functools.lru_cache(LAYOUTS)
def _layout(n: int, s: int, block: int, norm: str, shrink: float) -> Layout:
    knobs = native.I(s), native.I(_bits(s) if s > 1 else 0), native.I(norm == "l2"), native.F(shrink)
    return Layout(quantized_bytes(n, s, block), n, block, *knobs)


def dequantize_sum(
    received: Sequence[Tensor], out: Tensor, s: int, block: int, weight: float, *, add: bool = False
) -> None:
    """Out ``[b, n]`` = (or, with ``add``, +=) weight times the sum of what the wires ``[b, w]`` say, in their order.

    Raises:
        PayloadError: a length, norm or code that no sender writes; ``out`` is then undefined.
    """
    b, n = out.shape
    fast = backends.function(_DECODE) if s <= _MOST_NATIVE and out.device.type == "cpu" else None
    if fast is None:
        if not add:
            out.zero_()
        for wire in received:
            _dequantize_add(wire, out, s, block, weight)
        return
    W, at = len(received), check.numbers("out", out)
    addresses = check.wire_rows(received, b, quantized_bytes(n, s, block))
    for row in range(b):
        mine = check.pointers(addresses[row * W : (row + 1) * W])
        refused = fast(mine, W, at + 4 * n * row, n, block, s, _bits(s) if s > 1 else 0, weight, add, native.threads())
        if refused:
            raise PayloadError(_BAD_NORM if refused == native.BAD_HEAD else _bad_code(s))


_BAD_NORM = "field 'norms' must be finite and not negative"


def _bad_code(s: int) -> str:
    return f"field 'codes' must be in [0, {242 if s == 1 else 2 * s}]"


def _bits(s: int) -> int:
    """ceil(log2(2 s + 1))"""
    return (2 * s).bit_length()


def _code_bytes(n: int, s: int) -> int:
    return packed_trits_bytes(n) if s == 1 else packed_bytes(n, _bits(s))


def _bytes(span: Span, s: int) -> slice:
    return span.trits if s == 1 else span.bits(_bits(s))


# ---- the specification ----------------------------------------------------------------------------------------------
def _quantize(
    rows: Tensor,
    s: int,
    block: int,
    norm: str,
    shrink: float,
    rng: Stream,
    memory: Tensor | None,
    rest: Tensor | None,
) -> tuple[Tensor, bool]:
    b, n = rows.shape
    norms = rows.new_empty(b, block_count(n, block))
    codes = rows.new_empty(b, _code_bytes(n, s), dtype=torch.uint8)
    finite = True
    for span in spans(b, n, block):
        part = rows[span.row, None, span.columns]  # [1, m]
        if memory is not None:
            part = part + memory[span.row, None, span.columns]
        finite = finite and bool(part.isfinite().all())
        size = (block_abs_max if norm == "linf" else block_norm)(part, block)  # [1, nb]
        code = _levels(part, size, s, block, rng.lanes(len(span), rows.device, span.first)).add_(s)
        packed = pack_trits(code) if s == 1 else pack(code, _bits(s))
        sent = torch.where(size >= _TINY, size, 0.0).mul_(shrink)
        norms[span.row, span.blocks], codes[span.row, _bytes(span, s)] = sent, packed
        if rest is not None:
            said = code.sub_(s).float().mul_(spread(sent / s, len(span), block))
            torch.sub(part, said, out=rest[span.row, None, span.columns])
    return wires.join(norms, codes), finite


def _levels(part: Tensor, norm: Tensor, s: int, block: int, lane: Tensor) -> Tensor:
    """Numbers ``[1, m]``, norms ``[1, nb]``, lanes ``[m]`` -> ``[1, m]`` integers in [-s, s].

    Rounding: as the factor is a quotient that was rounded once, N times it is s 2**16 but for less than a half; and what is
    smaller than N does not become more.
    """
    m, zero = part.shape[1], norm < _TINY
    if s > _MOST_NATIVE:  # more bits than a float32 has
        y = part.double() * spread((s * 2.0**16 / norm.double()).masked_fill_(zero, 0.0), m, block)
        return _rounded(y.round_().to(torch.int64), lane)
    up = torch.where(norm < _SMALL, _UP, 1.0)  # else the factor could overflow
    factor = (s * 2.0**16 / (norm * up)).masked_fill_(zero, 0.0)
    y = part * spread(up, m, block) * spread(factor, m, block)
    return _rounded(y.round_().to(torch.int32), lane)


def _rounded(y: Tensor, lane: Tensor) -> Tensor:
    """Y in units of 2**-16 -> y, its magnitude rounded up if what it is more than an integer exceeds the lane; ``[1, m]``"""
    return (y.abs().add_(0xFFFF - lane) >> 16).mul_(y.sign())


def _dequantize_add(wire: Tensor, out: Tensor, s: int, block: int, weight: float) -> None:
    b, n = out.shape
    fields = [("norms", torch.float32, block_count(n, block)), ("codes", torch.uint8, _code_bytes(n, s))]
    norms, codes = wires.split(wire, fields)
    if not bool(((norms >= 0) & (norms < math.inf)).all()):
        raise PayloadError(_BAD_NORM)
    for span in spans(b, n, block):
        packed = codes[span.row, None, _bytes(span, s)]
        if s == 1 and bool((packed > 242).any()):
            raise PayloadError(_bad_code(s))
        code = unpack_trits(packed, len(span)) if s == 1 else unpack(packed, _bits(s), len(span))
        if bool((code > 2 * s).any()):
            raise PayloadError(_bad_code(s))
        factor = (norms[span.row, None, span.blocks] / s).mul_(weight)
        out[span.row, None, span.columns].add_(code.float().sub_(s).mul_(spread(factor, len(span), block)))
