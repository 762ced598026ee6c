"""The bindings of the native kernels that round to levels."""

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
from grace.kernels.stochastic_levels import Levels
from grace.kernels.stochastic_levels.codes import BAD_NORM, bad_code, code_bits
from grace.kernels.tensor_list import TensorList

if TYPE_CHECKING:
    from grace.random import Stream

_MOST = 127  # levels: 8 bits
native.declare("quantize", P, P, P, N, N, N, P, N, I, I, I, F, U, U, U, I)
native.declare("dequantize_sum", P, N, P, N, N, I, I, F, I, I)


def quantize(
    rows: Tensor, levels: Levels, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
) -> Any:
    if levels.s > _MOST:
        return NotImplemented
    return encode(native.c.quantize, _encode_layout(rows.shape[1], levels), rows, memory, rest, *rng.native_key())


def dequantize_sum(received: Sequence[Tensor], out: Tensor, levels: Levels, weight: float, *, add: bool = False) -> Any:
    if levels.s > _MOST:
        return NotImplemented
    fault = decode(native.c.dequantize_sum, _decode_layout(out.shape[1], levels), received, out, weight, add)
    if fault:
        raise PayloadError(BAD_NORM if fault == native.BAD_HEAD else bad_code(levels.s))
    return None


def quantize_many(message: Tensor, many: TensorList, levels: Levels, step: int, clip: float = 0.0) -> Any:
    if levels.s > _MOST or clip:
        return NotImplemented
    layout = functools.partial(_encode_layout, levels=levels)
    return encode_many(native.c.quantize, message, many, layout, levels, keys_of(many, step), step)


def dequantize_sum_many(rows: Tensor, many: TensorList, levels: Levels, weight: float) -> Any:
    if levels.s > _MOST:
        return NotImplemented
    layout = functools.partial(_decode_layout, levels=levels)
    return sum_many(native.c.dequantize_sum, rows, many, layout, levels, (weight, False))


@functools.lru_cache(LAYOUTS)
def _encode_layout(n: int, levels: Levels) -> Layout:
    knobs = I(levels.s), I(_bits(levels.s)), I(levels.norm == "l2"), F(levels.factor(n))
    return Layout(levels.payload(n), n, levels.block, *knobs)


@functools.lru_cache(LAYOUTS)
def _decode_layout(n: int, levels: Levels) -> Layout:
    return Layout(levels.payload(n), n, levels.block, I(levels.s), I(_bits(levels.s)))


def _bits(s: int) -> int:
    return code_bits(s) if s > 1 else 0  # base 3
