"""The bindings of the native kernels that round to powers of two."""

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
from grace.kernels.log2_quantization import BAD_CODE, BAD_HEAD, powers_bytes
from grace.kernels.tensor_list import TensorList

if TYPE_CHECKING:
    from grace.random import Stream

native.declare("natural", P, P, P, N, N, N, P, N, I, U, U, U, I)
native.declare("natural_sum", P, N, P, N, N, I, F, I, I)


def encode_powers(
    rows: Tensor, bits: int, block: int, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
) -> Any:
    if bits == 9:
        return NotImplemented
    return encode(native.c.natural, _layout(rows.shape[1], bits, block), rows, memory, rest, *rng.native_key())


def sum_powers(
    received: Sequence[Tensor], out: Tensor, bits: int, block: int, weight: float, *, add: bool = False
) -> Any:
    if bits == 9:
        return NotImplemented
    fault = decode(native.c.natural_sum, _layout(out.shape[1], bits, block), received, out, weight, add)
    if fault:
        raise PayloadError(BAD_HEAD if fault == native.BAD_HEAD else BAD_CODE)
    return None


def encode_powers_many(message: Tensor, many: TensorList, bits: int, block: int, step: int) -> Any:
    if bits == 9:
        return NotImplemented
    layout = functools.partial(_layout, bits=bits, block=block)
    return encode_many(native.c.natural, message, many, layout, (bits, block), keys_of(many, step), step)


def sum_powers_many(rows: Tensor, many: TensorList, bits: int, block: int, weight: float) -> Any:
    if bits == 9:
        return NotImplemented
    layout = functools.partial(_layout, bits=bits, block=block)
    return sum_many(native.c.natural_sum, rows, many, layout, (bits, block), (weight, False))


@functools.lru_cache(LAYOUTS)
def _layout(n: int, bits: int, block: int) -> Layout:
    return Layout(powers_bytes(n, bits, block), n, block, I(bits))
