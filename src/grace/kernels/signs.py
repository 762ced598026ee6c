"""One bit for each number: signs with the mean magnitude of their block, two means, or bare votes.

A wire ``[b, w]`` holds what the bits of each block stand for (float32 ``[nb]`` or twice that; nothing for votes), then
the bits, packed. Votes may also abstain: then they are digits 0, 1, 2 in base 3, five to a byte. The torch functions
below specify what the native kernels do, to the bit.

Letters: b rows of n numbers; blocks of B numbers, nb = ceil(n/B) of them per row, the last one shorter; W workers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from grace import backends, native
from grace import wire as wires
from grace.errors import PayloadError
from grace.kernels import check
from grace.kernels.encoding import LAYOUTS, Layout, encode
from grace.kernels.reference import (
    block_abs_mean,
    block_count,
    block_sizes,
    block_sum,
    pack,
    pack_trits,
    packed_bytes,
    packed_trits_bytes,
    spread,
    unpack,
    unpack_trits,
)
from grace.kernels.spans import spans

Zeros: TypeAlias = Literal["parity", "plus", "abstain"]
_ENCODE = native.declare(
    "one_bit",
    *(native.P, native.P, native.P, native.N, native.N, native.N, native.P, native.N),
    *(native.I, native.I, native.F, native.I),
)
_DECODE = native.declare(
    "one_bit_sum", native.P, native.N, native.P, native.N, native.N, native.I, native.F, native.I, native.I
)
_ENCODE_TRITS = native.declare(
    "trit_votes", native.P, native.P, native.P, native.N, native.N, native.P, native.N, native.I
)
_DECODE_TRITS = native.declare(
    "trit_votes_sum", native.P, native.N, native.P, native.N, native.F, native.I, native.I, native.I
)
_MAJORITY = native.declare("majority", native.P, native.N, native.P, native.N, native.F, native.I)
_VOTES, _SIGNS, _TWO_MEANS = range(3)
_ALL, _EVEN, _ODD = range(3)  # positions whose zeros count as positive
_FIELDS: dict[int, tuple[str, ...]] = {_VOTES: (), _SIGNS: ("scales",), _TWO_MEANS: ("lo", "hi")}


# ---- signs and their block's mean magnitude -------------------------------------------------------------------------
def scaled_signs(
    rows: Tensor, block: int, phase: int, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, bool]:
    """``p = rows + memory`` -> (wire ``[b, w]`` uint8, whether p was finite).

    Number i of p becomes ``sgn(p_i) |p|_1 / B``, with the sum over its block; a zero at position i of its row is positive
    if i + ``phase`` is odd. ``rest``, which may be ``rows``, becomes p minus what the wire says. If p is not finite, wire
    and rest mean nothing.

    Rows, memory and rest are float32 ``[b, n]``, contiguous; block >= 1.
    """
    return _encode(_SIGNS, rows, block, _ODD - (phase & 1), 0.0, memory, rest)


def scaled_signs_sum(received: Sequence[Tensor], out: Tensor, block: int, weight: float, *, add: bool = False) -> None:
    """Out ``[b, n]`` = (or, with ``add``, +=) weight times the sum of what the wires ``[b, w]`` say, in their order.

    Raises:
        PayloadError: a length or scale that no sender writes; ``out`` is then undefined.
    """
    _sum(_SIGNS, received, out, block, weight, add)


# ---- two means ------------------------------------------------------------------------------------------------------
def two_means(
    rows: Tensor, tau: float, block: int, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, bool]:
    """As :func:`scaled_signs`, but number i becomes the mean of the numbers of its block on its side of the threshold,
    which belongs to the upper one: ``p >= tau``.
    """
    return _encode(_TWO_MEANS, rows, block, _ALL, tau, memory, rest)


def two_means_sum(received: Sequence[Tensor], out: Tensor, block: int, weight: float, *, add: bool = False) -> None:
    """As :func:`scaled_signs_sum`, for the wires of :func:`two_means`."""
    _sum(_TWO_MEANS, received, out, block, weight, add)


# ---- votes ----------------------------------------------------------------------------------------------------------
def votes_bytes(n: int, zero: Zeros) -> int:
    """Bytes of the wire of n numbers."""
    return packed_trits_bytes(n) if zero == "abstain" else packed_bytes(n, 1)


def votes(
    rows: Tensor, zero: Zeros, phase: int, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, bool]:
    """As :func:`scaled_signs`, but without scales: number i becomes 1 or -1. A zero counts as it does there ("parity"), as
    1 ("plus"), or it becomes 0 ("abstain").
    """
    if zero != "abstain":
        zeros = _ALL if zero == "plus" else _ODD - (phase & 1)
        return _encode(_VOTES, rows, rows.shape[1], zeros, 0.0, memory, rest)
    fast = backends.function(_ENCODE_TRITS) if rows.is_cpu else None
    if fast is None:
        return _encode_trits(rows, memory, rest)
    _, n = rows.shape
    return encode(fast, _trits_layout(n), rows, memory, rest)


def votes_sum(received: Sequence[Tensor], out: Tensor, zero: Zeros, weight: float, *, add: bool = False) -> None:
    """As :func:`scaled_signs_sum`, for the wires of :func:`votes`."""
    if zero == "abstain":
        _sum_trits(received, out, weight, add=add, majority=False)
    else:
        _sum(_VOTES, received, out, out.shape[1], weight, add)


def majority(received: Sequence[Tensor], out: Tensor, zero: Zeros, weight: float) -> None:
    """Out ``[b, n]`` = the sign of weight times the sum of the votes: -1, 0 or 1; a tie is 0.

    Raises:
        PayloadError: a length or vote that no sender writes; ``out`` is then undefined.
    """
    weight = math.copysign(1.0, weight) if weight else 0.0
    fast = backends.function(_MAJORITY) if out.device.type == "cpu" else None
    if zero == "abstain":
        _sum_trits(received, out, weight, add=False, majority=True)
    elif fast is None:
        _sum(_VOTES, received, out, out.shape[1], weight, False)
        out.sign_()
    else:
        (b, n), W, at = out.shape, len(received), check.numbers("out", out)
        addresses = check.wire_rows(received, b, packed_bytes(n, 1))
        for row in range(b):
            fast(check.pointers(addresses[row * W : (row + 1) * W]), W, at + 4 * n * row, n, weight, native.threads())


# ---- dispatch -------------------------------------------------------------------------------------------------------
def _width(rule: int, n: int, block: int) -> int:
    return 4 * len(_FIELDS[rule]) * block_count(n, block) + packed_bytes(n, 1)


def _encode(
    rule: int, rows: Tensor, block: int, zeros: int, tau: float, memory: Tensor | None, rest: Tensor | None
) -> tuple[Tensor, bool]:
    fast = backends.function(_ENCODE) if rows.is_cpu else None
    if fast is None:
        return _encode_in_torch(rule, rows, block, zeros, tau, memory, rest)
    _, n = rows.shape
    return encode(fast, _layout(rule, n, block, zeros, tau), rows, memory, rest)


@functools.lru_cache(LAYOUTS)
def _layout(rule: int, n: int, block: int, zeros: int, tau: float) -> Layout:
    return Layout(_width(rule, n, block), n, block, native.I(rule), native.I(zeros), native.F(tau))


@functools.lru_cache(LAYOUTS)
def _trits_layout(n: int) -> Layout:
    return Layout(packed_trits_bytes(n), n, None)


def _sum(rule: int, received: Sequence[Tensor], out: Tensor, block: int, weight: float, add: bool) -> None:
    fast = backends.function(_DECODE) if out.device.type == "cpu" else None
    if fast is None:
        if not add:
            out.zero_()
        for wire in received:
            _add_in_torch(rule, wire, out, block, weight)
        return
    (b, n), W, at = out.shape, len(received), check.numbers("out", out)
    fields = _FIELDS[rule]
    addresses = check.wire_rows(received, b, _width(rule, n, block))
    for row in range(b):
        mine = check.pointers(addresses[row * W : (row + 1) * W])
        if fast(mine, W, at + 4 * n * row, n, block, len(fields), weight, add, native.threads()):
            for wire in received:
                _fields(rule, wire, n, block)  # says which
            raise PayloadError(f"fields {fields} changed while they were read")


def _sum_trits(received: Sequence[Tensor], out: Tensor, weight: float, *, add: bool, majority: bool) -> None:
    fast = backends.function(_DECODE_TRITS) if out.device.type == "cpu" else None
    if fast is None:
        if not add:
            out.zero_()
        for wire in received:
            _add_trits(wire, out, weight)
        if majority:
            out.sign_()
        return
    (b, n), W, at = out.shape, len(received), check.numbers("out", out)
    addresses = check.wire_rows(received, b, packed_trits_bytes(n))
    for row in range(b):
        mine = check.pointers(addresses[row * W : (row + 1) * W])
        if fast(mine, W, at + 4 * n * row, n, weight, add, majority, native.threads()):
            raise PayloadError(_BAD_VOTE)


# ---- the specification ----------------------------------------------------------------------------------------------
_BAD_VOTE = "field 'votes' must be in [0, 242]"


def _plus(part: Tensor, zeros: int, first: int) -> Tensor:
    """``[1, m]`` bool: which numbers, the first of them at position ``first``, count as positive."""
    if zeros == _ALL:
        return part >= 0
    plus = part > 0
    if not bool(part.all()):
        odd = torch.arange(first, first + part.shape[1], device=part.device).bitwise_and_(1).bool()
        plus |= (part == 0) & (odd if zeros == _ODD else ~odd)
    return plus


def _encode_in_torch(
    rule: int, rows: Tensor, block: int, zeros: int, tau: float, memory: Tensor | None, rest: Tensor | None
) -> tuple[Tensor, bool]:
    b, n = rows.shape
    names = _FIELDS[rule]
    said = [rows.new_empty(b, block_count(n, block)) for _ in names]
    bits = rows.new_empty(b, packed_bytes(n, 1), dtype=torch.uint8)
    finite = True
    for span in spans(b, n, block):
        part = rows[span.row, None, span.columns]  # [1, m]
        if memory is not None:
            part = part + memory[span.row, None, span.columns]
        finite = finite and bool(part.isfinite().all())
        up = part >= tau if rule == _TWO_MEANS else _plus(part, zeros, span.start)
        heads = _heads(rule, part, up, block)
        bits[span.row, span.bits(1)] = pack(up, 1)
        for field, head in zip(said, heads, strict=True):
            field[span.row, span.blocks] = head
        if rest is not None:
            torch.sub(part, _values(rule, heads, up, block, 1.0), out=rest[span.row, None, span.columns])
    return wires.join(*said, bits), finite


def _heads(rule: int, part: Tensor, up: Tensor, block: int) -> list[Tensor]:
    """Numbers ``[1, m]`` and their bits -> the fields of their blocks ``[1, nb]``."""
    if rule == _VOTES:
        return []
    if rule == _SIGNS:
        return [block_abs_mean(part, block)]
    count = block_sum(up, block)
    sizes = block_sizes(part.shape[1], block, part, torch.float64)
    upper = block_sum(torch.where(up, part, 0.0), block) / count.clamp_min(1)
    lower = block_sum(torch.where(up, 0.0, part), block) / (sizes - count).clamp_min(1)
    return [lower.float(), upper.float()]


def _values(rule: int, heads: list[Tensor], up: Tensor, block: int, weight: float) -> Tensor:
    """What bits ``[1, m]`` stand for, times weight: ``[1, m]``."""
    m = up.shape[1]
    one = torch.ones((), device=up.device)
    high = spread(heads[-1] * weight, m, block) if heads else one * weight
    low = spread(heads[0] * weight, m, block) if rule == _TWO_MEANS else -high
    return torch.where(up, high, low)


def _fields(rule: int, wire: Tensor, n: int, block: int) -> list[Tensor]:
    """The checked fields of a wire ``[b, w]``, and its bits."""
    names, nb = _FIELDS[rule], block_count(n, block)
    bits = "bits" if rule == _TWO_MEANS else "signs" if rule == _SIGNS else "votes"
    out = wires.split(wire, [*((name, torch.float32, nb) for name in names), (bits, torch.uint8, packed_bytes(n, 1))])
    for name, field in zip(names, out[:-1], strict=True):
        wires.checked_scale(name, field.abs() if rule == _TWO_MEANS else field)
    return out


def _add_in_torch(rule: int, wire: Tensor, out: Tensor, block: int, weight: float) -> None:
    b, n = out.shape
    *heads, bits = _fields(rule, wire, n, block)
    for span in spans(b, n, block):
        up = unpack(bits[span.row, None, span.bits(1)], 1, len(span)).bool()
        part = [head[span.row, None, span.blocks] for head in heads]
        out[span.row, None, span.columns].add_(_values(rule, part, up, block, weight))


def _encode_trits(rows: Tensor, memory: Tensor | None, rest: Tensor | None) -> tuple[Tensor, bool]:
    b, n = rows.shape
    wire = rows.new_empty(b, packed_trits_bytes(n), dtype=torch.uint8)
    finite = True
    for span in spans(b, n):
        part = rows[span.row, None, span.columns]  # [1, m]
        if memory is not None:
            part = part + memory[span.row, None, span.columns]
        finite = finite and bool(part.isfinite().all())
        sign = part.sign()
        wire[span.row, span.trits] = pack_trits(sign + 1)
        if rest is not None:
            torch.sub(part, sign, out=rest[span.row, None, span.columns])
    return wire, finite


def _add_trits(wire: Tensor, out: Tensor, weight: float) -> None:
    b, n = out.shape
    (packed,) = wires.split(wire, [("votes", torch.uint8, packed_trits_bytes(n))])
    if bool((packed > 242).any()):
        raise PayloadError(_BAD_VOTE)
    for span in spans(b, n):
        sign = unpack_trits(packed[span.row, None, span.trits], len(span)).to(out.dtype).sub_(1)
        out[span.row, None, span.columns].add_(sign.mul_(weight))
