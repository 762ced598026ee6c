"""The bindings of the native kernels for floats of 8 bits."""

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
from grace.kernels.fp8 import BAD_CODE, BAD_SCALE, FloatFormat, float_bytes
from grace.kernels.tensor_list import TensorList

if TYPE_CHECKING:
    from grace.random import Stream

native.declare("encode_floats", P, P, P, N, N, N, P, N, I, I, U, U, U, I)
native.declare("sum_floats", P, N, P, N, N, I, F, I, I)


def encode_floats(
    rows: Tensor,
    kind: FloatFormat,
    block: int,
    rng: Stream | None,
    memory: Tensor | None = None,
    rest: Tensor | None = None,
) -> tuple[Tensor, bool]:
    key = (0, 0, 0) if rng is None else rng.native_key()
    layout = _encode_layout(rows.shape[1], kind, block, rng is not None)
    return encode(native.c.encode_floats, layout, rows, memory, rest, *key)


def sum_floats(
    received: Sequence[Tensor], out: Tensor, kind: FloatFormat, block: int, weight: float, *, add: bool = False
) -> None:
    fault = decode(native.c.sum_floats, _decode_layout(out.shape[1], kind, block), received, out, weight, add)
    if fault:
        raise PayloadError(BAD_SCALE if fault == native.BAD_HEAD else BAD_CODE)


def encode_floats_many(message: Tensor, many: TensorList, kind: FloatFormat, block: int, step: int | None) -> Any:
    layout = functools.partial(_encode_layout, kind=kind, block=block, stochastic=step is not None)
    return encode_many(native.c.encode_floats, message, many, layout, (kind, block), keys_of(many, step), step)


def sum_floats_many(rows: Tensor, many: TensorList, kind: FloatFormat, block: int, weight: float) -> Any:
    layout = functools.partial(_decode_layout, kind=kind, block=block)
    return sum_many(native.c.sum_floats, rows, many, layout, (kind, block), (weight, False))


@functools.lru_cache(LAYOUTS)
def _encode_layout(n: int, kind: FloatFormat, block: int, stochastic: bool) -> Layout:
    return Layout(float_bytes(n, block), n, block, I(kind.m), I(stochastic))


@functools.lru_cache(LAYOUTS)
def _decode_layout(n: int, kind: FloatFormat, block: int) -> Layout:
    return Layout(float_bytes(n, block), n, block, I(kind.m))
