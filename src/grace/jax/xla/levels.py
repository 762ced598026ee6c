"""Stochastic rounding to levels, inside XLA: qsgd."""

from __future__ import annotations

import jax.numpy as jnp

from grace.errors import ConfigurationError
from grace.jax.xla.codec import Codec
from grace.jax.xla.codes import blocks, join, pack, pack_trits, repeat_by_block, split, unpack, unpack_trits
from grace.jax.xla.exact import product, quotient
from grace.jax.xla.place import TracedPeer
from grace.jax.xla.random import Array, lanes
from grace.kernels import block_count
from grace.kernels.stochastic_levels.codes import code_bits, code_bytes

_TINY, _SMALL, _UP = 2.0**-126, 2.0**-64, 2.0**60
_MOST = 127  # levels: with 16 bits more, float32 is exhausted


class LevelsCodec(Codec):
    """QSGD."""

    def check(self) -> None:
        if self.compressor.norm != "linf":
            raise ConfigurationError("qsgd inside XLA: norm='l2' needs float64; legal: norm='linf'")
        if self.compressor.s > _MOST:
            raise ConfigurationError(
                f"qsgd inside XLA: {self.compressor.s} levels need float64; legal: at most {_MOST} levels, 8 bits"
            )

    def encode(self, rows: Array, place: TracedPeer, hop: int, keep_rest: bool) -> tuple[Array, Array]:
        (b, n), s, block = rows.shape, self.compressor.s, self.compressor.bucket
        norm = jnp.abs(blocks(rows, block)).max(axis=2)
        lane = lanes(place.private_key(self.compressor.id, hop), place.step, b * n).reshape(b, n)
        level = _levels(rows, norm, lane, s, block)
        shrink = self.compressor.facts(n).contraction if self.compressor.shrink else 1.0
        sent = jnp.where(norm >= _TINY, norm, 0.0) * jnp.float32(shrink)
        codes = pack_trits(level + s) if s == 1 else pack(level + s, code_bits(s))
        decoded = product(level.astype(jnp.float32), repeat_by_block(quotient(sent, s), n, block), place.zero)
        return join(sent, codes), rows - decoded

    def decode(self, wire: Array, n: int, weight: float, place: TracedPeer) -> Array:
        s, block = self.compressor.s, self.compressor.bucket
        norm, codes = split(wire, [(jnp.float32, block_count(n, block)), (jnp.uint8, code_bytes(n, s))])
        level = (unpack_trits(codes, n) if s == 1 else unpack(codes, code_bits(s), n)) - s
        factor = product(quotient(norm, s), jnp.float32(weight), place.zero)
        return product(level.astype(jnp.float32), repeat_by_block(factor, n, block), place.zero)


def _levels(rows: Array, norm: Array, lane: Array, s: int, block: int) -> Array:
    """``[b, n]`` int32 in [-s, s]; see the reference for why no number rounds beyond s."""
    n = rows.shape[1]
    up = jnp.where(norm < _SMALL, _UP, 1.0)  # else the factor could overflow
    factor = jnp.where(norm < _TINY, 0.0, s * 2.0**16 / (norm * up))
    y = jnp.round(rows * repeat_by_block(up, n, block) * repeat_by_block(factor, n, block)).astype(jnp.int32)
    return ((jnp.abs(y) + (0xFFFF - lane)) >> 16) * jnp.sign(y)
