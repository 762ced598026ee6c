"""The bindings of the native kernels that round to levels."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from grace.compute import native
from grace.compute.native import F, I, N, P, U
from grace.errors import PayloadError
from grace.kernels.calling import LAYOUTS, Layout, decode, encode
from grace.kernels.stochastic_levels import quantized_bytes
from grace.kernels.stochastic_levels.codes import BAD_NORM, bad_code, code_bits

if TYPE_CHECKING:
    from grace.random import Stream

_MOST = 127  # levels: 8 bits
native.declare("quantize", P, P, P, N, N, N, P, N, I, I, I, F, U, U, U, I)
native.declare("dequantize_sum", P, N, P, N, N, I, I, F, I, I)


def quantize(
    rows: Tensor,
    s: int,
    block: int,
    norm: Literal["linf", "l2"],
    shrink: float,
    rng: Stream,
    memory: Tensor | None = None,
    rest: Tensor | None = None,
) -> Any:
    if s > _MOST:
        return NotImplemented
    layout = _encode_layout(rows.shape[1], s, block, norm, shrink)
    return encode(native.c.quantize, layout, rows, memory, rest, *rng.native_key())


def dequantize_sum(
    received: Sequence[Tensor], out: Tensor, s: int, block: int, weight: float, *, add: bool = False
) -> Any:
    if s > _MOST:
        return NotImplemented
    fault = decode(native.c.dequantize_sum, _decode_layout(out.shape[1], s, block), received, out, weight, add)
    if fault:
        raise PayloadError(BAD_NORM if fault == native.BAD_HEAD else bad_code(s))
    return None


@functools.lru_cache(LAYOUTS)
def _encode_layout(n: int, s: int, block: int, norm: str, shrink: float) -> Layout:
    return Layout(quantized_bytes(n, s, block), n, block, I(s), I(_bits(s)), I(norm == "l2"), F(shrink))


@functools.lru_cache(LAYOUTS)
def _decode_layout(n: int, s: int, block: int) -> Layout:
    return Layout(quantized_bytes(n, s, block), n, block, I(s), I(_bits(s)))


def _bits(s: int) -> int:
    return code_bits(s) if s > 1 else 0  # base 3
