"""The bindings of the native kernels for buckets between quantiles."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from grace.compute import native
from grace.compute.native import F, I, N, P, U
from grace.errors import PayloadError
from grace.kernels.calling import LAYOUTS, Layout, decode, encode
from grace.kernels.calling_many import encode_rows, keys_of, sum_many
from grace.kernels.quantiles import BAD_MEAN, bad_code, quantile_bytes
from grace.kernels.tensor_list import TensorList

if TYPE_CHECKING:
    from grace.random import Stream

native.declare("encode_quantiles", P, P, P, N, N, P, N, I, I, N, U, U, U, I)
native.declare("sum_quantiles", P, N, P, N, I, F, I, I)


def encode_quantiles(
    rows: Tensor,
    q: int,
    zero_edge: bool,
    seen: int,
    rng: Stream,
    memory: Tensor | None = None,
    rest: Tensor | None = None,
) -> Any:
    n = rows.shape[1]
    if n >> 32:
        return NotImplemented
    key = (0, 0, 0) if seen == n else rng.native_key()
    return encode(native.c.encode_quantiles, _encode_layout(n, q, zero_edge, seen), rows, memory, rest, *key)


def sum_quantiles(received: Sequence[Tensor], out: Tensor, q: int, weight: float, *, add: bool = False) -> None:
    fault = decode(native.c.sum_quantiles, _decode_layout(out.shape[1], q), received, out, weight, add)
    if fault:
        raise PayloadError(BAD_MEAN if fault == native.BAD_HEAD else bad_code(q))


def encode_quantiles_many(
    message: Tensor, many: TensorList, q: int, zero_edge: bool, seen: tuple[int, ...], step: int
) -> Any:
    if max(many.sizes) >> 32:
        return NotImplemented

    def layout_of(t: int) -> Layout:
        row = t * many.rows
        return _encode_layout(many.sizes[row], q, zero_edge, seen[row])

    spec = (q, zero_edge, seen)
    return encode_rows(native.c.encode_quantiles, message, many, layout_of, spec, keys_of(many, step), step)


def sum_quantiles_many(rows: Tensor, many: TensorList, q: int, weight: float) -> Any:
    layout = functools.partial(_decode_layout, q=q)
    return sum_many(native.c.sum_quantiles, rows, many, layout, q, (weight, False))


@functools.lru_cache(LAYOUTS)
def _encode_layout(n: int, q: int, zero_edge: bool, seen: int) -> Layout:
    return Layout(quantile_bytes(n, q), n, None, I(q), I(zero_edge), N(seen))


@functools.lru_cache(LAYOUTS)
def _decode_layout(n: int, q: int) -> Layout:
    return Layout(quantile_bytes(n, q), n, None, I(q))
