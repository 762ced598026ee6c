"""Numbers in fewer bits, one by one or in blocks, inside XLA: none, bf16, fp16, fp8."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from grace.jax.xla.codec import Codec, scale_by
from grace.jax.xla.codes import blocks, join, repeat_by_block, split, to_bytes
from grace.jax.xla.exact import product, quotient
from grace.jax.xla.place import TracedPeer
from grace.jax.xla.random import Array, lanes
from grace.kernels import MOST, block_count
from grace.methods.fp8 import FORMATS

_TINY = 2.0**-126


class IdentityCodec(Codec):
    """Numbers as they are."""

    def encode(self, rows: Array, place: TracedPeer, hop: int, keep_rest: bool) -> tuple[Array, Array]:
        return to_bytes(rows), jnp.zeros_like(rows)

    def decode(self, wire: Array, n: int, weight: float, place: TracedPeer) -> Array:
        return scale_by(split(wire, [(jnp.float32, n)])[0], weight, place)


class CastCodec(Codec):
    """Rounding to a 16-bit float."""

    @property
    def dtype(self) -> Any:
        """JAX's name of the compressor's dtype."""
        return jnp.dtype(str(self.compressor.rounds_to).removeprefix("torch."))

    def encode(self, rows: Array, place: TracedPeer, hop: int, keep_rest: bool) -> tuple[Array, Array]:
        most = float(jnp.finfo(self.dtype).max)
        narrow = (jnp.clip(rows, -most, most) if keep_rest else rows).astype(self.dtype)
        return to_bytes(narrow), rows - narrow.astype(jnp.float32)

    def decode(self, wire: Array, n: int, weight: float, place: TracedPeer) -> Array:
        return scale_by(split(wire, [(self.dtype, n)])[0].astype(jnp.float32), weight, place)


class FP8Codec(Codec):
    """8-bit floats, scaled block by block."""

    @property
    def dtype(self) -> Any:
        """JAX's name of the format."""
        return jnp.float8_e4m3fn if self.compressor.fmt == "e4m3" else jnp.float8_e5m2

    def encode(self, rows: Array, place: TracedPeer, hop: int, keep_rest: bool) -> tuple[Array, Array]:
        n, block, kind = rows.shape[1], self.compressor.block, FORMATS[self.compressor.fmt]
        top = jnp.minimum(jnp.abs(blocks(rows, block)).max(axis=2), MOST)
        scale = quotient(top, kind.F)
        scale = jnp.where(scale < _TINY, 0.0, scale)
        wide = repeat_by_block(scale, n, block)
        y = jnp.where(wide > 0, rows / jnp.maximum(wide, _TINY), 0.0)
        if self.compressor.stochastic:
            y = _stochastic(y, place.private_key(self.compressor.id, hop), place.step, kind)
        y = jnp.clip(y, -kind.F, kind.F).astype(self.dtype)
        decoded = product(y.astype(jnp.float32), wide, place.zero)
        return join(scale, y), rows - decoded

    def decode(self, wire: Array, n: int, weight: float, place: TracedPeer) -> Array:
        block = self.compressor.block
        scale, y = split(wire, [(jnp.float32, block_count(n, block)), (self.dtype, n)])
        decoded = product(y.astype(jnp.float32), repeat_by_block(scale, n, block), place.zero)
        return scale_by(decoded, weight, place)


def _stochastic(y: Array, key: Array, step: Array, kind: Any) -> Array:
    """``y [b, n]`` on the grid of the format, rounded at random, as the reference does."""
    u = (lanes(key, step, y.size).reshape(y.shape).astype(jnp.float32) + 0.5) * 2.0**-16
    size = jnp.abs(y)
    # of the spacing at y; the exponent of a float32 is in its bits 23 to 30
    power = (lax.bitcast_convert_type(size, jnp.int32) >> 23) - 127
    exponent = jnp.maximum(power, kind.least) - kind.m
    level = size * _power_of_two(-exponent)
    near, low = jnp.round(level), jnp.floor(level)
    up = low + (u < level - low)
    level = jnp.where(jnp.abs(level - near) <= 1e-6 * jnp.maximum(level, 1.0), near, up)
    return jnp.copysign(level * _power_of_two(exponent), y)


def _power_of_two(exponent: Array) -> Array:
    """2 to an int32 power in [-126, 127], exact."""
    return lax.bitcast_convert_type((exponent + 127) << 23, jnp.float32)
