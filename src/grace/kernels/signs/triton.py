"""Signs, two means and votes as Triton kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE
from grace.errors import PayloadError
from grace.flags.finite import Flag
from grace.kernels.signs import Zeros, votes_bytes
from grace.kernels.signs.rules import (
    ALL,
    BAD_VOTE,
    FIELDS,
    NONE,
    SIGNS,
    TWO_MEANS,
    VOTES,
    positive_zeros,
    split_wire,
    wire_bytes,
)
from grace.kernels.statistics.triton import mean_magnitude, mean_magnitude_of_many, two_means, two_means_of_many
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.jobs import Job, Rows, Tensors, add_up, add_up_many
from grace.kernels.tensor_list.triton import adder_at, code_width, encoder_at, so_far
from grace.kernels.triton import mark_if, negated, store_codes, store_tile
from grace.kernels.triton.tiles import (
    fields_of_blocks,
    lanes_of,
    left_of,
    load_codes,
    of_blocks,
    spread,
    store_fields,
    sum_of_tile,
)

_TINY = torch.finfo(torch.float32).tiny
# The rules VOTES, SIGNS and TWO_MEANS are also how many float32 fields a wire has for each block. A rule of this file is:
_TRITS = 3  # digits in base 3, for votes that may abstain


@triton.jit(do_not_specialize=["n", "tau", "step"])
def _encode(
    table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, step, block: tl.constexpr, low, high, tau,
    RULE: tl.constexpr, ZEROS: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, HAS_MEMORY: tl.constexpr,
    HAS_REST: tl.constexpr, G: tl.constexpr, PER: tl.constexpr,
):  # fmt: skip
    _task, tile, x, e, rest, start, n, base, bad, head, nb, _key0, _key1 = encoder_at(
        table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, block, MANY, EVEN
    )
    SPAN: tl.constexpr = G * PER
    lane = lanes_of(G, PER)
    first, begin, inside, full, p = sum_of_tile(x, e, bad, tile, start, n, lane, HAS_MEMORY, SPAN)
    if RULE == 3:
        sign = tl.where(p > 0, 1, 0) - tl.where(p < 0, 1, 0)
        store_codes(base, tl.where(inside, sign + 1, 0), first, n, code_width(n, 0), 0, G)
        value = sign.to(tl.float32)
    else:
        if RULE == 2:
            up = p >= tau
        elif ZEROS == 0:
            up = p >= 0
        elif ZEROS == 3:
            up = p > 0
        elif ZEROS == 2:
            up = (p > 0) | ((p == 0) & ((lane & 1) == 1))
        else:
            up = (p > 0) | ((p == 0) & ((lane & 1) == 0))
        store_codes(base + 4 * RULE * nb, tl.where(up & inside, 1, 0), first, n, code_width(n, 1), 1, G)
        if RULE == 0:
            value = tl.where(up, 1.0, -1.0)
        elif RULE == 1:
            scale = of_blocks(high + head, first, lane, inside, n, block, SPAN)
            store_fields(base, scale, first, lane, inside, n, block, SPAN)
            scale = spread(scale, first, lane, block, SPAN)
            value = tl.where(up, scale, negated(scale))
            if ZEROS == 3:
                value = value + 0.0
        else:
            lower = of_blocks(low + head, first, lane, inside, n, block, SPAN)
            upper = of_blocks(high + head, first, lane, inside, n, block, SPAN)
            store_fields(base, lower, first, lane, inside, n, block, SPAN)
            store_fields(base + 4 * nb, upper, first, lane, inside, n, block, SPAN)
            value = tl.where(up, spread(upper, first, lane, block, SPAN), spread(lower, first, lane, block, SPAN))
    if HAS_REST:
        store_tile(rest + begin + lane, p - value, inside, full)


@triton.jit(do_not_specialize=["weight", "n"])
def _sum(
    table, programs, wires, out, marks, n, W, stride, row_stride, block: tl.constexpr, weight,
    RULE: tl.constexpr, MAJORITY: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, ADD: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    out, first, n, base, marks, nb = adder_at(
        table, programs, wires, out, marks, n, row_stride, block, 1, MANY, EVEN, TILE
    )
    out, lane, left = out + first, tl.arange(0, TILE), left_of(n, first, TILE)
    inside, full = lane < left, left == TILE
    total, wrong = so_far(out, lane, left, ADD, full), tl.full((1,), 0, tl.int32)
    for _ in range(W):
        if RULE == 3:
            digit, good = load_codes(base, first, lane, inside, code_width(n, 0), 0)
            wrong = tl.maximum(wrong, tl.max(((good == 0) & inside).to(tl.int32), 0))
            total += (digit - 1).to(tl.float32) * weight
        else:
            bit, _good = load_codes(base + 4 * RULE * nb, first, lane, inside, code_width(n, 1), 1)
            if RULE == 0:
                high = tl.zeros_like(total) + 1.0 * weight
                low = negated(high)
            else:
                high = fields_of_blocks(base + 4 * (RULE - 1) * nb, first, lane, inside, n, block, TILE)
                if RULE == 1:
                    bad = ((high >= 0) & (high < float("inf"))) == 0
                    high = spread(high * weight, first, lane, block, TILE)
                    low = negated(high)
                else:
                    low = fields_of_blocks(base, first, lane, inside, n, block, TILE)
                    bad = ((tl.abs(low) < float("inf")) & (tl.abs(high) < float("inf"))) == 0
                    high = spread(high * weight, first, lane, block, TILE)
                    low = spread(low * weight, first, lane, block, TILE)
                wrong = tl.maximum(wrong, tl.max(bad.to(tl.int32), 0))
            total += tl.where(bit == 1, high, low)
        base += stride
    mark_if(marks, wrong > 0)
    if MAJORITY:
        total = tl.where(total > 0, 1.0, tl.where(total < 0, -1.0, 0.0))
    store_tile(out + lane, total, inside, full)


def encode_signs(
    rows: Tensor, block: int, phase: int, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, Flag]:
    return _write(SIGNS, rows, block, positive_zeros("parity", phase), 0.0, memory, rest)


def encode_two_means(
    rows: Tensor, tau: float, block: int, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, Flag]:
    return _write(TWO_MEANS, rows, block, ALL, tau, memory, rest)


def encode_votes(
    rows: Tensor, zero: Zeros, phase: int, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, Flag]:
    rule, zeros = (_TRITS, ALL) if zero == "abstain" else (VOTES, positive_zeros(zero, phase))
    return _write(rule, rows, max(1, rows.shape[1]), zeros, 0.0, memory, rest)


def sum_signs(received: Sequence[Tensor], out: Tensor, block: int, weight: float, *, add: bool = False) -> None:
    _add_up(SIGNS, received, out, block, weight, add)


def sum_two_means(received: Sequence[Tensor], out: Tensor, block: int, weight: float, *, add: bool = False) -> None:
    _add_up(TWO_MEANS, received, out, block, weight, add)


def sum_votes(received: Sequence[Tensor], out: Tensor, zero: Zeros, weight: float, *, add: bool = False) -> None:
    _add_up(_TRITS if zero == "abstain" else VOTES, received, out, max(1, out.shape[1]), weight, add)


def take_majority(received: Sequence[Tensor], out: Tensor, zero: Zeros, weight: float) -> None:
    weight = math.copysign(1.0, weight) if weight else 0.0
    rule = _TRITS if zero == "abstain" else VOTES
    _add_up(rule, received, out, max(1, out.shape[1]), weight, False, majority=True)


# ---- many tensors ---------------------------------------------------------------------------------------------------
def encode_signs_many(message: Tensor, many: TensorList, block: int, phase: int) -> Tensor:
    out: Tensor = _launch(Tensors(message, many), SIGNS, block, positive_zeros("parity", phase))
    return out


def encode_positive_many(message: Tensor, many: TensorList) -> Tensor:
    out: Tensor = _launch(Tensors(message, many), SIGNS, max(many.sizes), NONE)
    return out


def encode_two_means_many(message: Tensor, many: TensorList, tau: float, block: int) -> Tensor:
    out: Tensor = _launch(Tensors(message, many), TWO_MEANS, block, ALL, tau)
    return out


def encode_votes_many(message: Tensor, many: TensorList, zero: Zeros, phase: int) -> Tensor:
    rule, zeros = (_TRITS, ALL) if zero == "abstain" else (VOTES, positive_zeros(zero, phase))
    out: Tensor = _launch(Tensors(message, many), rule, max(many.sizes), zeros)
    return out


def sum_signs_many(rows: Tensor, many: TensorList, block: int, weight: float) -> Tensor:
    return add_up_many(_sum, rows, many, block, weight, 1, RULE=SIGNS, MAJORITY=False)


def sum_two_means_many(rows: Tensor, many: TensorList, block: int, weight: float) -> Tensor:
    return add_up_many(_sum, rows, many, block, weight, 1, RULE=TWO_MEANS, MAJORITY=False)


def take_majority_many(rows: Tensor, many: TensorList, zero: Zeros, weight: float) -> Tensor:
    weight = math.copysign(1.0, weight) if weight else 0.0
    rule = _TRITS if zero == "abstain" else VOTES
    return add_up_many(_sum, rows, many, max(many.sizes), weight, 1, RULE=rule, MAJORITY=True)


# ---- launches -------------------------------------------------------------------------------------------------------
def _write(
    rule: int, rows: Tensor, block: int, zeros: int, tau: float, memory: Tensor | None, rest: Tensor | None
) -> tuple[Tensor, Flag]:
    job = Rows(rows, memory, rest, _bytes(rule, rows.shape[1], block))
    out: tuple[Tensor, Flag] = _launch(job, rule, block, zeros, tau)
    return out


def _launch(job: Job, rule: int, block: int, zeros: int, tau: float = 0.0) -> Any:
    low = high = None  # what the bits of each block stand for
    if rule == SIGNS:
        high = job.reduce(mean_magnitude, mean_magnitude_of_many, block)
        if zeros == NONE:
            high.masked_fill_(high < _TINY, 0.0)
    elif rule == TWO_MEANS:
        low, high = job.reduce(two_means, two_means_of_many, block, tau)
    per = 5 if rule == _TRITS else 8
    return job.encode(_encode, block, low, high, tau, per=per, RULE=rule, ZEROS=zeros, G=TILE // 8, PER=per)


def _add_up(
    rule: int, received: Sequence[Tensor], out: Tensor, block: int, weight: float, add: bool, majority: bool = False
) -> None:
    n = out.shape[1]
    marks = add_up(
        _sum,
        received,
        out,
        _bytes(rule, n, block),
        block,
        weight,
        1,
        add=add,
        last="MAJORITY",
        RULE=rule,
        MAJORITY=majority,
    )
    if rule == _TRITS:
        marks.refuse(0, lambda: PayloadError(BAD_VOTE))
    elif FIELDS[rule]:
        marks.refuse(0, lambda: _wrong(rule, received, n, block))


def _wrong(rule: int, received: Sequence[Tensor], n: int, block: int) -> Exception:
    """The error of the wire that has a field out of range."""
    for wire in received:
        try:
            split_wire(rule, wire, n, block)
        except PayloadError as error:
            return error
    return PayloadError(f"fields {FIELDS[rule]} must be finite")


def _bytes(rule: int, n: int, block: int) -> int:
    return votes_bytes(n, "abstain") if rule == _TRITS else wire_bytes(rule, n, block)
