"""Scaled signs, inside XLA: efsignsgd."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from grace.jax.xla.codec import Codec
from grace.jax.xla.codes import blocks, join, pack, repeat_by_block, split, unpack
from grace.jax.xla.exact import block_mean, product
from grace.jax.xla.place import TracedPeer
from grace.jax.xla.random import Array
from grace.kernels import block_count, packed_bytes


class SignsCodec(Codec):
    """EF-SignSGD."""

    def encode(self, rows: Array, place: TracedPeer, hop: int, keep_rest: bool) -> tuple[Array, Array]:
        n, block = rows.shape[1], self.compressor.block
        count = block_count(n, block)
        sizes = np.minimum(block, n - np.arange(count) * block).astype(np.float32)
        scale = block_mean(jnp.abs(blocks(rows, block)), sizes)
        odd = (jnp.arange(n) + place.rank + place.step) % 2 == 1  # positions whose zeros count as positive
        plus = (rows > 0) | ((rows == 0) & odd)
        wide = repeat_by_block(scale, n, block)
        return join(scale, pack(plus, 1)), rows - jnp.where(plus, wide, -wide)

    def decode(self, wire: Array, n: int, weight: float, place: TracedPeer) -> Array:
        block = self.compressor.block
        scale, bits = split(wire, [(jnp.float32, block_count(n, block)), (jnp.uint8, packed_bytes(n, 1))])
        wide = repeat_by_block(product(scale, jnp.float32(weight), place.zero), n, block)
        return jnp.where(unpack(bits, 1, n) == 1, wide, -wide)
