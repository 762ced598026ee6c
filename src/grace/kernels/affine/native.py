"""The bindings of the native kernels for codes between the least and the largest number of a block."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from grace.compute import native
from grace.compute.native import F, I, N, P, U
from grace.errors import PayloadError
from grace.kernels.affine import BAD_RANGE, affine_bytes
from grace.kernels.calling import LAYOUTS, Layout, decode, encode
from grace.kernels.calling_many import encode_many, keys_of, sum_many
from grace.kernels.tensor_list import TensorList

if TYPE_CHECKING:
    from grace.random import Stream

native.declare("encode_affine", P, P, P, N, N, N, P, N, I, I, U, U, U, I)
native.declare("sum_affine", P, N, P, N, N, I, F, I, I)


def encode_affine(
    rows: Tensor, bits: int, block: int, rng: Stream | None, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, bool]:
    key = (0, 0, 0) if rng is None else rng.native_key()
    layout = _encode_layout(rows.shape[1], bits, block, rng is not None)
    return encode(native.c.encode_affine, layout, rows, memory, rest, *key)


def sum_affine(
    received: Sequence[Tensor], out: Tensor, bits: int, block: int, weight: float, *, add: bool = False
) -> None:
    if decode(native.c.sum_affine, _decode_layout(out.shape[1], bits, block), received, out, weight, add):
        raise PayloadError(BAD_RANGE)


def encode_affine_many(message: Tensor, many: TensorList, bits: int, block: int, step: int | None) -> Any:
    layout = functools.partial(_encode_layout, bits=bits, block=block, stochastic=step is not None)
    return encode_many(native.c.encode_affine, message, many, layout, (bits, block), keys_of(many, step), step)


def sum_affine_many(rows: Tensor, many: TensorList, bits: int, block: int, weight: float) -> Any:
    layout = functools.partial(_decode_layout, bits=bits, block=block)
    return sum_many(native.c.sum_affine, rows, many, layout, (bits, block), (weight, False))


@functools.lru_cache(LAYOUTS)
def _encode_layout(n: int, bits: int, block: int, stochastic: bool) -> Layout:
    return Layout(affine_bytes(n, bits, block), n, block, I(bits), I(stochastic))


@functools.lru_cache(LAYOUTS)
def _decode_layout(n: int, bits: int, block: int) -> Layout:
    return Layout(affine_bytes(n, bits, block), n, block, I(bits))
