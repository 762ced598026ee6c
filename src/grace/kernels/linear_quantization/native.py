"""The bindings of the native kernels for fixed-point numbers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from grace.compute import native
from grace.compute.native import F, I, N, P, U
from grace.errors import PayloadError
from grace.kernels.calling import LAYOUTS, Layout, decode, encode
from grace.kernels.calling_many import encode_many, keys_of, sum_many
from grace.kernels.linear_quantization import BAD_UNIT, FixedPoint, bad_code
from grace.kernels.stochastic_levels import MOST
from grace.kernels.tensor_list import TensorList

if TYPE_CHECKING:
    from grace.random import Stream

native.declare("encode_fixed", P, P, P, N, N, N, P, N, I, I, F, F, F, I, U, U, U, I)
native.declare("sum_fixed", P, N, P, N, N, I, I, F, I, I)


def encode_fixed(
    rows: Tensor, code: FixedPoint, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, bool]:
    key = (0, 0, 0) if code.nearest else rng.native_key()
    return encode(native.c.encode_fixed, _encode_layout(rows.shape[1], code), rows, memory, rest, *key)


def sum_fixed(received: Sequence[Tensor], out: Tensor, code: FixedPoint, weight: float, *, add: bool = False) -> None:
    if decode(native.c.sum_fixed, _decode_layout(out.shape[1], code), received, out, weight, add):
        raise PayloadError(bad_code(code.bits) if code.clip == 1 else BAD_UNIT)


def encode_fixed_many(message: Tensor, many: TensorList, code: FixedPoint, step: int) -> Any:
    layout, drawn = functools.partial(_encode_layout, code=code), None if code.nearest else step
    return encode_many(native.c.encode_fixed, message, many, layout, code, keys_of(many, drawn), drawn)


def sum_fixed_many(rows: Tensor, many: TensorList, code: FixedPoint, weight: float) -> Any:
    layout = functools.partial(_decode_layout, code=code)
    return sum_many(native.c.sum_fixed, rows, many, layout, code, (weight, False))


@functools.lru_cache(LAYOUTS)
def _encode_layout(n: int, code: FixedPoint) -> Layout:
    bits, least, unit = I(code.bits), I(code.least), F(code.clip / code.q)
    knobs = bits, least, unit, F(MOST / code.least), F(code.divisor(n)), I(not code.nearest)
    return Layout(code.payload(n), n, code.block, *knobs)


@functools.lru_cache(LAYOUTS)
def _decode_layout(n: int, code: FixedPoint) -> Layout:
    return Layout(code.payload(n), n, code.block, I(code.bits), I(code.clip == 1))
