"""Grace's random streams inside XLA: the numbers of :class:`grace.random.Stream`, to the bit, for a traced step.

Both generators are Threefry-2x32-20. A key is two 32-bit words, ``Stream.key()``; counters are (group, step).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import jax.numpy as jnp
from jax import lax
from jax.extend.random import threefry_2x32

from grace.random.reference import FEISTEL_ROUNDS, SORTED_SUBSET

Array: TypeAlias = Any  # of JAX, concrete or traced


def words(key: Array, step: Array, groups: int) -> tuple[Array, Array]:
    """Two uint32 ``[groups]``: the columns of ``Stream.words(groups)``."""
    counts = jnp.concatenate([jnp.arange(groups, dtype=jnp.uint32), jnp.full(groups, step, jnp.uint32)])
    both = threefry_2x32((key[0], key[1]), counts)
    return both[:groups], both[groups:]


def lanes(key: Array, step: Array, n: int) -> Array:
    """``[n]`` int32 in [0, 65536): ``Stream.lanes(n)``."""
    first, second = words(key, step, -(-n // 4))
    parts = [first & 0xFFFF, first >> 16, second & 0xFFFF, second >> 16]
    return jnp.stack(parts, axis=1).reshape(-1)[:n].astype(jnp.int32)


def subset(key: Array, step: Array, n: int, k: int) -> Array:
    """``[k]`` int32: ``Stream.subset(n, k)``; 0 <= k <= n < 2**31."""
    if k == n:
        return jnp.arange(n, dtype=jnp.int32)
    if n <= SORTED_SUBSET:
        # as the 64-bit numbers 2**32 first + second of two signed words
        first, second = (lax.bitcast_convert_type(word, jnp.int32) for word in words(key, step, n))
        return lax.sort((first, second, jnp.arange(n, dtype=jnp.int32)), num_keys=2)[2][:k]
    return _feistel(key, step, n, k)


def _feistel(key: Array, step: Array, n: int, k: int) -> Array:
    """The images of 0 to k - 1 under the stream's permutation of [0, n); repeated until each lies below n."""
    half = ((n - 1).bit_length() + 1) // 2
    keys = words(key, step, FEISTEL_ROUNDS)[0]

    def permute(x: Array) -> Array:
        left, right = x >> half, x & ((1 << half) - 1)
        for turn in range(FEISTEL_ROUNDS):
            left, right = right, left ^ (_hash32(right ^ keys[turn]) & ((1 << half) - 1))
        return (left << half) | right

    first = permute(jnp.arange(k, dtype=jnp.uint32))
    image = lax.while_loop(lambda x: (x >= n).any(), lambda x: jnp.where(x >= n, permute(x), x), first)
    return image.astype(jnp.int32)


def _hash32(x: Array) -> Array:
    """As in the reference; uint32 wraps by itself."""
    x = x ^ (x >> 16)
    x = x * jnp.uint32(0x7FEB352D)
    x = x ^ (x >> 15)
    x = x * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
