"""The bindings of the native kernels for rotations."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from grace.compute import native
from grace.compute.native import F, I, N, P, U
from grace.errors import PayloadError
from grace.kernels import check
from grace.kernels.blocks import block_count
from grace.kernels.calling import LAYOUTS, Layout, decode, encode
from grace.kernels.calling_many import encode_many, key_of, sum_many
from grace.kernels.rotation import BAD_SCALE, CENTROIDS, CentroidCode
from grace.kernels.tensor_list import TensorList

if TYPE_CHECKING:
    from grace.random import Stream

_PLAIN, _FORWARD, _BACK = range(3)
native.declare("rotate", P, P, N, N, N, I, U, U, U, I)
native.declare("rotate_norms", P, P, P, N, N, P, U, U, U, I)
native.declare("encode_rotated", P, P, P, N, N, N, P, N, P, I, I, I, U, U, U, I)
native.declare("sum_rotated", P, N, P, N, N, P, I, I, F, I, U, U, U, I)


def hadamard(rows: Tensor, block: int) -> Any:
    return _rotate(rows, block, _PLAIN, (0, 0, 0))


def rotate_blocks(rows: Tensor, block: int, rng: Stream) -> Any:
    return _rotate(rows, block, _FORWARD, rng.native_key())


def rotate_blocks_back(rows: Tensor, block: int, rng: Stream) -> Any:
    return _rotate(rows, block, _BACK, rng.native_key())


def rotate_norms(rows: Tensor, block: int, rng: Stream, out: Tensor, memory: Tensor | None = None) -> Any:
    b, n = rows.shape
    if b != 1 or n == 0:
        return NotImplemented
    norms = torch.empty(1, block_count(n, block), dtype=torch.float32, device="cpu")
    x, e, _ = check.same_shape(rows, memory, None)
    y = check.numbers("out", out, rows.shape)
    finite = native.c.rotate_norms(
        x, e, y, n, block, check.numbers("norms", norms), *rng.native_key(), native.threads()
    )
    return norms, bool(finite)


def encode_rotated(
    rows: Tensor, code: CentroidCode, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, bool]:
    layout = _encode_layout(rows.shape[1], code)
    return encode(native.c.encode_rotated, layout, rows, memory, rest, *rng.native_key())


def sum_rotated(
    received: Sequence[Tensor], out: Tensor, code: CentroidCode, weight: float, rng: Stream, *, add: bool = False
) -> None:
    layout = _decode_layout(out.shape[1], code)
    if decode(native.c.sum_rotated, layout, received, out, weight, add, *rng.native_key()):
        raise PayloadError(BAD_SCALE)


def _rotate(rows: Tensor, block: int, way: int, key: tuple[Any, Any, int]) -> Any:
    if rows.dtype is not torch.float32 or rows.numel() == 0 or not rows.is_contiguous():
        return NotImplemented
    out, (b, n) = torch.empty_like(rows), rows.shape
    native.c.rotate(check.numbers("rows", rows), check.numbers("out", out), b, n, block, way, *key, native.threads())
    return out


def encode_rotated_many(message: Tensor, many: TensorList, code: CentroidCode, step: int) -> Any:
    def key(t: int) -> tuple[Any, ...]:
        return key_of(many.own_stream(t, 0) if code.private else many.shared_stream(t, 0))

    layout = functools.partial(_encode_layout, code=code)
    return encode_many(native.c.encode_rotated, message, many, layout, code, key, step)


def sum_rotated_many(rows: Tensor, many: TensorList, code: CentroidCode, weight: float, step: int) -> Any:
    def key(t: int) -> tuple[Any, ...]:
        return key_of(many.shared_stream(t, 0))

    layout = functools.partial(_decode_layout, code=code)
    return sum_many(native.c.sum_rotated, rows, many, layout, code, (weight, False), key, step)


@functools.lru_cache
def _book(bits: int) -> Tensor:
    """``[2**bits]`` float32: the centroids, ascending."""
    half = torch.tensor(CENTROIDS[bits], dtype=torch.float32, device="cpu")
    return torch.cat((-half.flip(0), half))


def _book_at(bits: int) -> Any:
    return P(native.address("centroids", _book(bits), torch.float32, 1 << bits))


@functools.lru_cache(LAYOUTS)
def _encode_layout(n: int, code: CentroidCode) -> Layout:
    knobs = _book_at(code.bits), I(code.bits), I(not code.unbiased), I(code.private)
    return Layout(code.payload(n), n, code.block, *knobs)


@functools.lru_cache(LAYOUTS)
def _decode_layout(n: int, code: CentroidCode) -> Layout:
    return Layout(code.payload(n), n, code.block, _book_at(code.bits), I(code.bits), I(code.private))
