"""The largest numbers only, inside XLA: topk."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from grace.errors import ConfigurationError
from grace.jax.xla.codec import Codec, scale_by
from grace.jax.xla.codes import decode_indices, encode_indices, indices_bytes, join, split
from grace.jax.xla.place import TracedPeer
from grace.jax.xla.random import Array
from grace.kernels.index_codes.codes import fixed_code, varies
from grace.methods.common.counts import count_kept


class TopKCodec(Codec):
    """Top-k."""

    def check(self) -> None:
        if varies(self.compressor.index):
            raise ConfigurationError(
                f"topk inside XLA: index={self.compressor.index!r} has sizes that depend on the data; "
                "legal: 'auto', 'raw', 'bitmap', 'elias-fano'"
            )

    @property
    def dtype(self) -> Any:
        """In which the wire holds the kept values."""
        return jnp.dtype(self.compressor.values)

    def encode(self, rows: Array, place: TracedPeer, hop: int, keep_rest: bool) -> tuple[Array, Array]:
        n = rows.shape[1]
        k, code = self._code(n)
        index = jnp.sort(lax.top_k(jnp.abs(rows), k)[1], axis=1)  # the first of equal magnitudes, as in Grace
        kept = jnp.take_along_axis(rows, index, axis=1)
        sent = _narrow(kept) if self.dtype == jnp.bfloat16 else kept
        rest = _put(rows, index, kept - sent.astype(jnp.float32))
        return join(sent, encode_indices(index, n, code)), rest

    def decode(self, wire: Array, n: int, weight: float, place: TracedPeer) -> Array:
        index, values = self._pairs(wire, n, weight, place)
        return _put(jnp.zeros((wire.shape[0], n), jnp.float32), index, values)

    def add(self, out: Array, wire: Array, weight: float, place: TracedPeer) -> Array:
        # wire by wire, each index once: the same order, and so the same bits, on every device
        index, values = self._pairs(wire[None], out.shape[0], weight, place)
        return out.at[index[0]].add(values[0], unique_indices=True, indices_are_sorted=True)

    def _pairs(self, wire: Array, n: int, weight: float, place: TracedPeer) -> tuple[Array, Array]:
        k, code = self._code(n)
        values, packed = split(wire, [(self.dtype, k), (jnp.uint8, indices_bytes(n, k, code))])
        return decode_indices(packed, n, k, code), scale_by(values.astype(jnp.float32), weight, place)

    def _code(self, n: int) -> tuple[int, str]:
        """Count of the numbers that are sent, of n, and the code of their places."""
        k = count_kept(self.compressor.ratio, n)
        return k, fixed_code(n, k, self.compressor.index)


def _narrow(x: Array) -> Array:
    """To bfloat16; what would round to an inf becomes the largest number."""
    most = float(jnp.finfo(jnp.bfloat16).max)
    return jnp.clip(x, -most, most).astype(jnp.bfloat16)


def _put(rows: Array, index: Array, values: Array) -> Array:
    """Rows ``[b, n]`` with these values ``[b, k]`` at these places."""
    at = jnp.arange(rows.shape[0])[:, None]
    return rows.at[at, index].set(values, unique_indices=True, indices_are_sorted=True)
