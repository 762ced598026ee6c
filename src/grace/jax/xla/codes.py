"""Fields, blocks and lists inside XLA: the layouts of ``docs/concepts/wire-format.md``.

Letters: b rows of n numbers; blocks of B numbers, nb = ceil(n/B) of them per row; wires are uint8 ``[b, w]``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from grace.jax.xla.random import Array
from grace.kernels.index_codes.fixed import elias_fano_split, index_bits, layout
from grace.kernels.packing import TRITS_PER_BYTE, packed_bytes, packed_trits_bytes


# ---- bytes ----------------------------------------------------------------------------------------------------------
def to_bytes(field: Array) -> Array:
    """``[b, n]`` of any dtype -> uint8 ``[b, n itemsize]``, little-endian."""
    out = lax.bitcast_convert_type(field, jnp.uint8)
    return out.reshape(field.shape[0], -1)


def join(*fields: Array) -> Array:
    """Fields ``[b, n_i]`` side by side: one wire."""
    return jnp.concatenate([to_bytes(field) for field in fields], axis=1)


def split(wire: Array, fields: Sequence[tuple[Any, int]]) -> list[Array]:
    """The inverse of :func:`join`, for (dtype, count) of each field."""
    out, at = [], 0
    for dtype, count in fields:
        size = jnp.dtype(dtype).itemsize
        part = wire[:, at : at + count * size]
        at += count * size
        out.append(part if size == 1 and dtype == jnp.uint8 else _from_bytes(part, dtype, count, size))
    return out


def _from_bytes(part: Array, dtype: Any, count: int, size: int) -> Array:
    shape = (part.shape[0], count) if size == 1 else (part.shape[0], count, size)
    return lax.bitcast_convert_type(part.reshape(shape), dtype)


# ---- blocks ---------------------------------------------------------------------------------------------------------
def pad(rows: Array, n: int) -> Array:
    """``[b, <= n]`` with zeros up to n columns."""
    return jnp.pad(rows, ((0, 0), (0, n - rows.shape[1])))


def blocks(rows: Array, block: int) -> Array:
    """``[b, n]`` -> ``[b, nb, B]``, zeros after the end."""
    b, n = rows.shape
    block = min(block, n)
    count = -(-n // block)
    return pad(rows, count * block).reshape(b, count, block)


def repeat_by_block(scales: Array, n: int, block: int) -> Array:
    """``[b, nb]`` -> ``[b, n]``: each block's number at each of its positions."""
    block = min(block, n)
    b, count = scales.shape
    return jnp.broadcast_to(scales[:, :, None], (b, count, block)).reshape(b, count * block)[:, :n]


# ---- fields of a few bits ---------------------------------------------------------------------------------------------
def pack(values: Array, bits: int) -> Array:
    """Fields ``[b, n]``, 0 <= value < 2**bits, bits <= 31 -> ``[b, ceil(n bits / 8)]``, a little-endian bit stream."""
    b, n = values.shape
    per, size = _group(bits)
    count = -(-n // per)
    wide = pad(values.astype(jnp.uint32), count * per).reshape(b, count, per)
    out = []
    for byte in range(size):  # of a group
        word = jnp.zeros((), jnp.uint32)
        for j in range(per):
            word = word | _shift(wide[:, :, j], j * bits - 8 * byte, bits)
        out.append(word & 0xFF)
    return jnp.stack(out, axis=2).reshape(b, -1)[:, : packed_bytes(n, bits)].astype(jnp.uint8)


def unpack(packed: Array, bits: int, n: int) -> Array:
    """The inverse of :func:`pack`: ``[b, n]`` int32."""
    b = packed.shape[0]
    per, size = _group(bits)
    count = -(-n // per)
    wide = pad(packed.astype(jnp.uint32), count * size).reshape(b, count, size)
    out = []
    for j in range(per):
        word = jnp.zeros((), jnp.uint32)
        for byte in range(size):
            word = word | _shift(wide[:, :, byte], 8 * byte - j * bits, 8)
        out.append(word & ((1 << bits) - 1))
    return jnp.stack(out, axis=2).reshape(b, -1)[:, :n].astype(jnp.int32)


def _group(bits: int) -> tuple[int, int]:
    """The smallest number of fields that fills whole bytes, and how many bytes."""
    common = math.gcd(bits, 8)
    return 8 // common, bits // common


def _shift(x: Array, left: int, bits: int) -> Array:
    """A field of ``bits`` bits, shifted; zero where it leaves the 32 bits of a word on either side."""
    if left >= 32 or -left >= bits:
        return jnp.zeros((), jnp.uint32)
    return x << left if left >= 0 else x >> -left


def pack_trits(trits: Array) -> Array:
    """Digits ``[b, n]`` in {0, 1, 2} -> ``[b, ceil(n/5)]``."""
    b, n = trits.shape
    digits = pad(trits.astype(jnp.int32), packed_trits_bytes(n) * TRITS_PER_BYTE).reshape(b, -1, TRITS_PER_BYTE)
    return sum(digits[:, :, j] * 3**j for j in range(TRITS_PER_BYTE)).astype(jnp.uint8)


def unpack_trits(packed: Array, n: int) -> Array:
    """The inverse of :func:`pack_trits`: ``[b, n]`` int32."""
    wide = packed.astype(jnp.int32)
    digits = [wide // 3**j % 3 for j in range(TRITS_PER_BYTE)]
    return jnp.stack(digits, axis=2).reshape(packed.shape[0], -1)[:, :n]


# ---- lists of indices -------------------------------------------------------------------------------------------------
def encode_indices(index: Array, n: int, code: str) -> Array:
    """Ascending lists int32 ``[b, k]`` below n -> wire, in the code "raw", "bitmap" or "elias-fano"."""
    k = index.shape[1]
    if code == "raw":
        return pack(index, index_bits(n))
    if code == "bitmap":
        return pack(_set(index, n), 1)
    low, size = elias_fano_split(n, k)
    high = pack(_set((index >> low) + jnp.arange(k), size), 1)
    return jnp.concatenate([pack(index & ((1 << low) - 1), low), high], axis=1) if low else high


def decode_indices(packed: Array, n: int, k: int, code: str) -> Array:
    """The inverse of :func:`encode_indices`: int32 ``[b, k]``."""
    if code == "raw":
        return unpack(packed, index_bits(n), k)
    if code == "bitmap":
        return _find(unpack(packed, 1, n), k)
    low, size = elias_fano_split(n, k)
    at = packed_bytes(k, low)
    index = (_find(unpack(packed[:, at:], 1, size), k) - jnp.arange(k)) << low
    return index | unpack(packed[:, :at], low, k) if low else index


def indices_bytes(n: int, k: int, code: str) -> int:
    """Bytes of such a list."""
    return layout(n, k, code).size


def _set(index: Array, n: int) -> Array:
    """``[b, n]`` with ones at the places ``[b, k]``."""
    rows = jnp.arange(index.shape[0])[:, None]
    return jnp.zeros((index.shape[0], n), jnp.int32).at[rows, index].set(1, unique_indices=True)


def _find(bits: Array, k: int) -> Array:
    """The places ``[b, k]``, ascending, of the k ones of each row ``[b, n]``."""
    b, n = bits.shape
    place = jnp.where(bits == 1, jnp.cumsum(bits, axis=1) - 1, k)  # k: beyond the end, dropped
    at = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32), (b, n))
    return jnp.zeros((b, k), jnp.int32).at[jnp.arange(b)[:, None], place].set(at, mode="drop")
