"""A tensor's exchange inside XLA, for each way to carry wires: all-gather, scatter-reduce, or sums by the network.

Letters: x is one worker's ``[n]`` float32; W workers; chunks of c = ceil(n/W) numbers.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from grace.jax.xla.codec import Codec
from grace.jax.xla.codes import pad
from grace.jax.xla.exact import product
from grace.jax.xla.place import TracedPeer
from grace.jax.xla.random import Array
from grace.jax.xla.together import Gather, Scatter, Sum, Talk

Outcome = tuple[Array, Array]  # the mean [n], and the part of x that was not sent [n]


def allgather(codec: Codec, x: Array, place: TracedPeer, keep_rest: bool) -> Talk[Outcome]:
    """Everyone decodes all wires, and adds them up in the order of the ranks."""
    wire, rest = codec.encode(x[None], place, 0, keep_rest)
    wires = yield Gather(wire[0])
    return _average(codec, wires, x.shape[0], place), rest[0]


def scatter_reduce(codec: Codec, x: Array, place: TracedPeer, keep_rest: bool) -> Talk[Outcome]:
    """Rank r averages chunk r, compresses it again, and sends that to everyone; the second rounding is its debt."""
    W, n = place.world, x.shape[0]
    c = -(-n // W)
    wire, rest = codec.encode(pad(x[None], W * c).reshape(W, c), place, 0, keep_rest)
    theirs = yield Scatter(wire)
    chunk = _average(codec, theirs, c, place)
    again, debt = codec.encode(chunk[None], place, 1, keep_rest)
    final = yield Gather(again[0])
    mean = codec.decode(final, c, 1.0, place)
    rest = rest.at[place.rank].add(product(debt[0], jnp.float32(W), place.zero))
    return mean.reshape(-1)[:n], rest.reshape(-1)[:n]


def dense(x: Array, place: TracedPeer) -> Talk[Outcome]:
    """The mean as the network sums it, in x's dtype."""
    mean = yield Sum(x * (1 / place.world))
    return mean, jnp.zeros_like(x)


def cast_sum(codec: Codec, x: Array, place: TracedPeer, keep_rest: bool) -> Talk[Outcome]:
    """The network sums narrow numbers, which were divided by W before; never with a memory."""
    narrow = (x * jnp.float32(1 / place.world)).astype(codec.dtype)  # type: ignore[attr-defined]
    mean = yield Sum(narrow)
    return mean.astype(jnp.float32), jnp.zeros_like(x)


def _average(codec: Codec, wires: Array, n: int, place: TracedPeer) -> Array:
    """``[n]``: the mean of what the wires ``[W, w]`` say, added in the order of the ranks."""
    weight = 1 / place.world
    first = codec.decode(wires[:1], n, weight, place)[0]
    if place.world == 1:
        return first
    return lax.scan(lambda out, wire: (codec.add(out, wire, weight, place), None), first, wires[1:])[0]
