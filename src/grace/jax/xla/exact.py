"""Arithmetic with the same bits as Grace's kernels, whatever the compiler does to it.

XLA fuses a product and a sum into one operation that rounds once, and divides by a constant by multiplying by its reciprocal.
It can do neither across a zero that is known only at run time, so such a zero is added to what must be rounded.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from grace.jax.xla.random import Array


def hidden_zero(step: Array) -> Array:
    """0.0, float32; the compiler does not know that a step is not negative."""
    return jnp.minimum(jnp.asarray(step, jnp.int32), 0).astype(jnp.float32)


def product(x: Array, y: Array, zero: Array) -> Array:
    """``x y``, rounded before it is used."""
    return x * y + zero


def quotient(x: Array, by: float) -> Array:
    """``x / by`` for finite x >= 0, rounded once."""
    return x / (by + jnp.minimum(x, 0.0))


def block_mean(magnitudes: Array, sizes: Array) -> Array:
    """``[..., B]`` float32, >= 0, zeros after the end -> ``[...]``: their sum, divided by ``sizes`` (at most 4,096, else one
    more rounding), rounded to float32.

    Sums are pairs of float32 that have 48 bits: the result is the float64 one of Grace's kernels, except that very rarely it
    is off by one unit in the last place.
    """
    high, low = magnitudes, jnp.zeros_like(magnitudes)
    while (width := high.shape[-1]) > 1:
        if width % 2:
            high, low = (jnp.concatenate([x, jnp.zeros_like(x[..., :1])], axis=-1) for x in (high, low))
        half = high.shape[-1] // 2
        high, error = _two_sum(high[..., :half], high[..., half:])
        low = low[..., :half] + low[..., half:] + error
    high, low = _two_sum(high[..., 0], low[..., 0])
    by = sizes + jnp.minimum(high, 0.0)  # not a constant: the compiler would use its reciprocal, and ties would be lost
    first = high / by
    front = lax.bitcast_convert_type(lax.bitcast_convert_type(first, jnp.int32) & ~0xFFF, jnp.float32)
    left = ((high - front * sizes) - (first - front) * sizes) + low  # products of 12 bits by 12: exact
    return jnp.where(jnp.isfinite(high), first + left / by, jnp.nan)


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The sum, rounded, and what was lost: together exact."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)
