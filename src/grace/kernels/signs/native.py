"""The bindings of the native kernels for signs, two means and votes."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from grace.compute import native
from grace.compute.native import F, I, N, P
from grace.errors import PayloadError
from grace.kernels.calling import LAYOUTS, Layout, decode, encode
from grace.kernels.calling_many import encode_many, sum_many
from grace.kernels.signs import Zeros, votes_bytes
from grace.kernels.signs.rules import (
    ALL,
    BAD_VOTE,
    FIELDS,
    SIGNS,
    TWO_MEANS,
    VOTES,
    positive_zeros,
    split_wire,
    wire_bytes,
)
from grace.kernels.tensor_list import TensorList

native.declare("one_bit", P, P, P, N, N, N, P, N, I, I, F, I)
native.declare("one_bit_sum", P, N, P, N, N, I, F, I, I)
native.declare("trit_votes", P, P, P, N, N, P, N, I)
native.declare("trit_votes_sum", P, N, P, N, F, I, I, I)
native.declare("majority", P, N, P, N, F, I)


def encode_signs(
    rows: Tensor, block: int, phase: int, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, bool]:
    layout = _encode_layout(SIGNS, rows.shape[1], block, positive_zeros("parity", phase), 0.0)
    return encode(native.c.one_bit, layout, rows, memory, rest)


def sum_signs(received: Sequence[Tensor], out: Tensor, block: int, weight: float, *, add: bool = False) -> None:
    _sum(SIGNS, received, out, block, weight, add)


def encode_two_means(
    rows: Tensor, tau: float, block: int, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, bool]:
    return encode(native.c.one_bit, _encode_layout(TWO_MEANS, rows.shape[1], block, ALL, tau), rows, memory, rest)


def sum_two_means(received: Sequence[Tensor], out: Tensor, block: int, weight: float, *, add: bool = False) -> None:
    _sum(TWO_MEANS, received, out, block, weight, add)


def encode_votes(
    rows: Tensor, zero: Zeros, phase: int, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, bool]:
    n = rows.shape[1]
    if zero == "abstain":
        return encode(native.c.trit_votes, _votes(n, zero), rows, memory, rest)
    layout = _encode_layout(VOTES, n, n, positive_zeros(zero, phase), 0.0)
    return encode(native.c.one_bit, layout, rows, memory, rest)


def sum_votes(received: Sequence[Tensor], out: Tensor, zero: Zeros, weight: float, *, add: bool = False) -> None:
    if zero == "abstain":
        _sum_trits(received, out, weight, add, majority=False)
    else:
        _sum(VOTES, received, out, out.shape[1], weight, add)


def take_majority(received: Sequence[Tensor], out: Tensor, zero: Zeros, weight: float) -> None:
    weight = math.copysign(1.0, weight) if weight else 0.0
    if zero == "abstain":
        _sum_trits(received, out, weight, False, majority=True)
    else:
        decode(native.c.majority, _votes(out.shape[1], zero), received, out, weight)


def _sum(rule: int, received: Sequence[Tensor], out: Tensor, block: int, weight: float, add: bool) -> None:
    n = out.shape[1]
    if decode(native.c.one_bit_sum, _decode_layout(rule, n, block), received, out, weight, add):
        for wire in received:
            split_wire(rule, wire, n, block)  # says which one is wrong
        raise PayloadError(f"fields {FIELDS[rule]} changed while they were read")


def _sum_trits(received: Sequence[Tensor], out: Tensor, weight: float, add: bool, *, majority: bool) -> None:
    if decode(native.c.trit_votes_sum, _votes(out.shape[1], "abstain"), received, out, weight, add, majority):
        raise PayloadError(BAD_VOTE)


def encode_signs_many(message: Tensor, many: TensorList, block: int, phase: int) -> Any:
    return _encode_many(SIGNS, message, many, block, positive_zeros("parity", phase))


def encode_two_means_many(message: Tensor, many: TensorList, tau: float, block: int) -> Any:
    return _encode_many(TWO_MEANS, message, many, block, ALL, tau)


def encode_votes_many(message: Tensor, many: TensorList, zero: Zeros, phase: int) -> Any:
    if zero == "abstain":
        return encode_many(native.c.trit_votes, message, many, functools.partial(_votes, zero=zero), zero)
    return _encode_many(VOTES, message, many, None, positive_zeros(zero, phase))


def sum_signs_many(rows: Tensor, many: TensorList, block: int, weight: float) -> Any:
    return _sum_many(SIGNS, rows, many, block, weight)


def sum_two_means_many(rows: Tensor, many: TensorList, block: int, weight: float) -> Any:
    return _sum_many(TWO_MEANS, rows, many, block, weight)


def take_majority_many(rows: Tensor, many: TensorList, zero: Zeros, weight: float) -> Any:
    weight = math.copysign(1.0, weight) if weight else 0.0
    kernel, more = (
        (native.c.trit_votes_sum, (weight, False, True)) if zero == "abstain" else (native.c.majority, (weight,))
    )
    return sum_many(kernel, rows, many, functools.partial(_votes, zero=zero), zero, more)


def _encode_many(rule: int, message: Tensor, many: TensorList, block: int | None, zeros: int, tau: float = 0.0) -> Any:
    def layout(n: int) -> Layout:
        return _encode_layout(rule, n, n if block is None else block, zeros, tau)

    return encode_many(native.c.one_bit, message, many, layout, (rule, block, zeros, tau))


def _sum_many(rule: int, rows: Tensor, many: TensorList, block: int, weight: float) -> Any:
    def layout(n: int) -> Layout:
        return _decode_layout(rule, n, block)

    return sum_many(native.c.one_bit_sum, rows, many, layout, (rule, block), (weight, False))


@functools.lru_cache(LAYOUTS)
def _encode_layout(rule: int, n: int, block: int, zeros: int, tau: float) -> Layout:
    return Layout(wire_bytes(rule, n, block), n, block, I(rule), I(zeros), F(tau))


@functools.lru_cache(LAYOUTS)
def _decode_layout(rule: int, n: int, block: int) -> Layout:
    return Layout(wire_bytes(rule, n, block), n, block, I(len(FIELDS[rule])))


@functools.lru_cache(LAYOUTS)
def _votes(n: int, zero: Zeros) -> Layout:
    return Layout(votes_bytes(n, zero), n, None)
