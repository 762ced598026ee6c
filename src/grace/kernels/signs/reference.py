"""The specification of signs, two means and votes, in plain torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from grace import wire as wires
from grace.errors import PayloadError
from grace.flags.finite import Flag, and_, flag, on_host
from grace.flags.refusals import refuse_unless
from grace.kernels.blocks import block_count, block_sizes, repeat_by_block
from grace.kernels.packing import pack, pack_trits, packed_bytes, packed_trits_bytes, unpack, unpack_trits
from grace.kernels.signs import Zeros, votes_bytes
from grace.kernels.signs.rules import (
    ALL,
    BAD_VOTE,
    FIELDS,
    ODD,
    SIGNS,
    TWO_MEANS,
    VOTES,
    positive_zeros,
    split_wire,
    wire_bytes,
)
from grace.kernels.spans import split_spans
from grace.kernels.statistics import block_abs_mean, block_sum
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.reference import encode_each, sum_each


def encode_signs(
    rows: Tensor, block: int, phase: int, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, Flag]:
    return _encode(SIGNS, rows, block, positive_zeros("parity", phase), 0.0, memory, rest)


def sum_signs(received: Sequence[Tensor], out: Tensor, block: int, weight: float, *, add: bool = False) -> None:
    _sum(SIGNS, received, out, block, weight, add)


def encode_two_means(
    rows: Tensor, tau: float, block: int, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, Flag]:
    return _encode(TWO_MEANS, rows, block, ALL, tau, memory, rest)


def sum_two_means(received: Sequence[Tensor], out: Tensor, block: int, weight: float, *, add: bool = False) -> None:
    _sum(TWO_MEANS, received, out, block, weight, add)


def encode_votes(
    rows: Tensor, zero: Zeros, phase: int, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, Flag]:
    if zero == "abstain":
        return _encode_trits(rows, memory, rest)
    return _encode(VOTES, rows, rows.shape[1], positive_zeros(zero, phase), 0.0, memory, rest)


def sum_votes(received: Sequence[Tensor], out: Tensor, zero: Zeros, weight: float, *, add: bool = False) -> None:
    if zero != "abstain":
        return _sum(VOTES, received, out, out.shape[1], weight, add)
    if not add:
        out.zero_()
    for wire in received:
        _add_trits(wire, out, weight)
    return None


def take_majority(received: Sequence[Tensor], out: Tensor, zero: Zeros, weight: float) -> None:
    sum_votes(received, out, zero, math.copysign(1.0, weight) if weight else 0.0)
    out.sign_()


# ---- many tensors ---------------------------------------------------------------------------------------------------
def encode_signs_many(message: Tensor, many: TensorList, block: int, phase: int) -> Tensor:
    return encode_each(message, many, lambda _, x, memory, rest: encode_signs(x, block, phase, memory, rest))


def encode_positive_many(message: Tensor, many: TensorList) -> Tensor:
    def encode(t: int, x: Tensor, memory: Tensor | None, rest: Tensor | None) -> tuple[Tensor, Flag]:
        p = x if memory is None else x + memory
        mean = block_abs_mean(p, p.shape[1])
        mean, up = torch.where(mean < torch.finfo(torch.float32).tiny, 0.0, mean), p > 0
        finite = flag(p.isfinite().all())
        if rest is not None:
            torch.sub(p, torch.where(up, mean, -mean) + 0.0, out=rest)
        return wires.join(mean, pack(up, 1)), finite

    return encode_each(message, many, encode)


def encode_two_means_many(message: Tensor, many: TensorList, tau: float, block: int) -> Tensor:
    return encode_each(message, many, lambda _, x, memory, rest: encode_two_means(x, tau, block, memory, rest))


def encode_votes_many(message: Tensor, many: TensorList, zero: Zeros, phase: int) -> Tensor:
    return encode_each(message, many, lambda _, x, memory, rest: encode_votes(x, zero, phase, memory, rest))


def sum_signs_many(rows: Tensor, many: TensorList, block: int, weight: float) -> Tensor:
    widths = [wire_bytes(SIGNS, n, block) for n in many.sizes]
    return sum_each(rows, many, widths, lambda received, out: sum_signs(received, out, block, weight))


def sum_two_means_many(rows: Tensor, many: TensorList, block: int, weight: float) -> Tensor:
    widths = [wire_bytes(TWO_MEANS, n, block) for n in many.sizes]
    return sum_each(rows, many, widths, lambda received, out: sum_two_means(received, out, block, weight))


def take_majority_many(rows: Tensor, many: TensorList, zero: Zeros, weight: float) -> Tensor:
    widths = [votes_bytes(n, zero) for n in many.sizes]
    return sum_each(rows, many, widths, lambda received, out: take_majority(received, out, zero, weight))


# ---- bits -----------------------------------------------------------------------------------------------------------
def _plus(part: Tensor, zeros: int, first: int) -> Tensor:
    """``[1, m]`` bool: which numbers, the first of them at position ``first``, count as positive."""
    if zeros == ALL:
        return part >= 0
    plus = part > 0
    if not on_host(part.device) or not bool(part.all()):
        odd = torch.arange(first, first + part.shape[1], device=part.device, dtype=torch.int64).bitwise_and_(1).bool()
        plus |= (part == 0) & (odd if zeros == ODD else ~odd)
    return plus


def _encode(
    rule: int, rows: Tensor, block: int, zeros: int, tau: float, memory: Tensor | None, rest: Tensor | None
) -> tuple[Tensor, Flag]:
    b, n = rows.shape
    names = FIELDS[rule]
    fields = [rows.new_empty(b, block_count(n, block)) for _ in names]
    bits = rows.new_empty(b, packed_bytes(n, 1), dtype=torch.uint8)
    finite: Flag = True
    for span in split_spans(b, n, block):
        part = rows[span.row, None, span.columns]  # [1, m]
        if memory is not None:
            part = part + memory[span.row, None, span.columns]
        finite = and_(finite, flag(part.isfinite().all()))
        up = part >= tau if rule == TWO_MEANS else _plus(part, zeros, span.start)
        heads = _heads(rule, part, up, block)
        bits[span.row, span.bits(1)] = pack(up, 1)
        for field, head in zip(fields, heads, strict=True):
            field[span.row, span.blocks] = head
        if rest is not None:
            torch.sub(part, _decode(rule, heads, up, block, 1.0), out=rest[span.row, None, span.columns])
    return wires.join(*fields, bits), finite


def _heads(rule: int, part: Tensor, up: Tensor, block: int) -> list[Tensor]:
    """Numbers ``[1, m]`` and their bits -> the fields of their blocks ``[1, nb]``."""
    if rule == VOTES:
        return []
    if rule == SIGNS:
        return [block_abs_mean(part, block)]
    count = block_sum(up, block)
    sizes = block_sizes(part.shape[1], block, part, torch.float64)
    upper = block_sum(torch.where(up, part, 0.0), block) / count.clamp_min(1)
    lower = block_sum(torch.where(up, 0.0, part), block) / (sizes - count).clamp_min(1)
    return [lower.float(), upper.float()]


def _decode(rule: int, heads: list[Tensor], up: Tensor, block: int, weight: float) -> Tensor:
    """The numbers that bits ``[1, m]`` stand for, times weight: ``[1, m]``."""
    m = up.shape[1]
    unit = torch.ones((), device=up.device, dtype=torch.float32)
    high = repeat_by_block(heads[-1] * weight, m, block) if heads else unit * weight
    low = repeat_by_block(heads[0] * weight, m, block) if rule == TWO_MEANS else -high
    return torch.where(up, high, low)


def _sum(rule: int, received: Sequence[Tensor], out: Tensor, block: int, weight: float, add: bool) -> None:
    if not add:
        out.zero_()
    for wire in received:
        _add(rule, wire, out, block, weight)


def _add(rule: int, wire: Tensor, out: Tensor, block: int, weight: float) -> None:
    b, n = out.shape
    *heads, bits = split_wire(rule, wire, n, block)
    for span in split_spans(b, n, block):
        up = unpack(bits[span.row, None, span.bits(1)], 1, len(span)).bool()
        part = [head[span.row, None, span.blocks] for head in heads]
        out[span.row, None, span.columns].add_(_decode(rule, part, up, block, weight))


# ---- digits in base 3 -----------------------------------------------------------------------------------------------
def _encode_trits(rows: Tensor, memory: Tensor | None, rest: Tensor | None) -> tuple[Tensor, Flag]:
    b, n = rows.shape
    wire = rows.new_empty(b, packed_trits_bytes(n), dtype=torch.uint8)
    finite: Flag = True
    for span in split_spans(b, n):
        part = rows[span.row, None, span.columns]  # [1, m]
        if memory is not None:
            part = part + memory[span.row, None, span.columns]
        finite = and_(finite, flag(part.isfinite().all()))
        sign = part.sign()
        wire[span.row, span.trits] = pack_trits(sign + 1)
        if rest is not None:
            torch.sub(part, sign, out=rest[span.row, None, span.columns])
    return wire, finite


def _add_trits(wire: Tensor, out: Tensor, weight: float) -> None:
    b, n = out.shape
    (packed,) = wires.split(wire, [("votes", torch.uint8, packed_trits_bytes(n))])
    refuse_unless((packed <= 242).all(), lambda: PayloadError(BAD_VOTE))
    for span in split_spans(b, n):
        sign = unpack_trits(packed[span.row, None, span.trits], len(span)).to(out.dtype).sub_(1)
        out[span.row, None, span.columns].add_(sign.mul_(weight))
