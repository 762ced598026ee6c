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
from grace.kernels.log2_quantization import BAD_CODE, BAD_HEAD, powers_bytes

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


@functools.lru_cache(LAYOUTS)
def _layout(n: int, bits: int, block: int) -> Layout:
    return Layout(powers_bytes(n, bits, block), n, block, I(bits))
