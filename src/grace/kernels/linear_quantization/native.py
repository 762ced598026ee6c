"""The bindings of the native kernels for fixed-point numbers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from grace.compute import native
from grace.compute.native import F, I, N, P, U
from grace.errors import PayloadError
from grace.kernels.calling import LAYOUTS, Layout, decode, encode
from grace.kernels.linear_quantization import BAD_UNIT, bad_code, fixed_bytes
from grace.kernels.stochastic_levels import MOST

if TYPE_CHECKING:
    from grace.random import Stream

native.declare("encode_fixed", P, P, P, N, N, N, P, N, I, I, F, F, F, I, U, U, U, I)
native.declare("sum_fixed", P, N, P, N, N, I, I, F, I, I)


def encode_fixed(
    rows: Tensor,
    bits: int,
    block: int,
    clip: float,
    shrink: float,
    rng: Stream | None,
    memory: Tensor | None = None,
    rest: Tensor | None = None,
) -> tuple[Tensor, bool]:
    key = (0, 0, 0) if rng is None else rng.native_key()
    layout = _encode_layout(rows.shape[1], bits, block, clip, shrink, rng is not None)
    return encode(native.c.encode_fixed, layout, rows, memory, rest, *key)


def sum_fixed(
    received: Sequence[Tensor], out: Tensor, bits: int, block: int, clip: float, weight: float, *, add: bool = False
) -> None:
    layout = _decode_layout(out.shape[1], bits, block, clip == 1)
    if decode(native.c.sum_fixed, layout, received, out, weight, add):
        raise PayloadError(bad_code(bits) if clip == 1 else BAD_UNIT)


@functools.lru_cache(LAYOUTS)
def _encode_layout(n: int, bits: int, block: int, clip: float, shrink: float, stochastic: bool) -> Layout:
    q = (1 << (bits - 1)) - 1
    least = q + (clip < 1)
    knobs = I(bits), I(least), F(clip / q), F(MOST / least), F(shrink), I(stochastic)
    return Layout(fixed_bytes(n, bits, block), n, block, *knobs)


@functools.lru_cache(LAYOUTS)
def _decode_layout(n: int, bits: int, block: int, symmetric: bool) -> Layout:
    return Layout(fixed_bytes(n, bits, block), n, block, I(bits), I(symmetric))
