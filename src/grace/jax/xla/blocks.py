"""Whole blocks, the same on all ranks, which the network sums, inside XLA: blockrandomk.

Letters: nb blocks of B numbers, the last one shorter; kb of them are sent; a cycle has T = ceil(nb/kb) steps.
"""

from __future__ import annotations

import jax.numpy as jnp
import torch
from jax import lax

from grace.errors import ConfigurationError
from grace.jax.xla.codes import pad
from grace.jax.xla.communicators import Outcome
from grace.jax.xla.place import TracedPeer
from grace.jax.xla.random import Array, subset
from grace.jax.xla.together import Sum, Talk
from grace.kernels import Drawing
from grace.methods.blockrandomk import BlockRandomK
from grace.methods.common.blocks import Blocks
from grace.methods.common.counts import count_kept


def check_block_random_k(method: BlockRandomK) -> None:
    """Refuses the mode that needs a leader.

    Raises:
        ConfigurationError: mode clt.
    """
    if method.mode == "clt":
        raise ConfigurationError("blockrandomk inside XLA: mode='clt' is not available; legal: 'random', 'cyclic'")


def block_random_k(method: BlockRandomK, x: Array, place: TracedPeer, keep_rest: bool) -> Talk[Outcome]:
    """Blocks drawn anew in each step, or in turn."""
    n = x.shape[0]
    count = -(-n // method.block)
    kb = count_kept(method.ratio, count)
    factor = count / kb if method.mode == "random" and method.scale is not False else 1.0
    chosen = jnp.sort(_choose(method, place, count, kb))
    blocks = pad(x[None], count * method.block).reshape(count, method.block)
    taken = blocks.at[chosen].get(mode="fill", fill_value=0.0)  # [kb, B]; of no block: zeros
    width = min(n, kb * method.block)
    mean_blocks = yield Sum(taken.reshape(-1)[:width] * (1 / place.world))
    mean_blocks = pad(mean_blocks[None] * jnp.float32(factor), kb * method.block).reshape(kb, method.block)
    mean = jnp.zeros(blocks.shape).at[chosen].set(mean_blocks, mode="drop")
    rest = blocks.at[chosen].set(taken * jnp.float32(1 - factor), mode="drop")
    return mean.reshape(-1)[:n], rest.reshape(-1)[:n]


def _choose(method: BlockRandomK, place: TracedPeer, count: int, kb: int) -> Array:
    """``[kb]`` int32: the blocks of this step; ``count``, which is no block, where the end of a cycle leaves fewer."""
    stream = place.shared(Blocks.__name__)
    if method.mode == "random":
        return subset(jnp.array(stream.key(), jnp.uint32), place.step, count, kb)
    order = jnp.asarray(Drawing.order(count, stream, torch.device("cpu")).numpy(), jnp.int32)
    period = -(-count // kb)
    order = jnp.pad(order, (0, period * kb - count), constant_values=count)
    return lax.dynamic_slice(order, (place.step % period * kb,), (kb,))
