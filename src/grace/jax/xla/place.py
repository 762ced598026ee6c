"""Place and time: what an exchange inside XLA knows about its worker."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import lax

from grace.jax.xla.exact import hidden_zero
from grace.jax.xla.random import Array
from grace.random import Stream


@dataclass(frozen=True)
class TracedPeer:
    """As :class:`grace.Peer`, where rank and step are traced.

    Args:
        axis: the axis, or axes, of the mesh along which gradients are averaged.
        world: its size.
        step: exchanges so far, a scalar.
        name: of the tensor.
        seed: of all random streams.
    """

    axis: str | tuple[str, ...]
    world: int
    step: Array
    name: str
    seed: int

    @property
    def rank(self) -> Array:
        """My place along the axis."""
        return lax.axis_index(self.axis)

    @property
    def zero(self) -> Array:
        """See :mod:`grace.jax.xla.exact`."""
        return hidden_zero(self.step)

    def private_key(self, method: str, hop: int) -> Array:
        """``[2]`` uint32: the key of this rank's stream, from a table of all ranks' that is made while tracing."""
        streams = (Stream(self.seed, method, self.name, rank, 0).fork(hop) for rank in range(self.world))
        return jnp.asarray(np.array([stream.key() for stream in streams], np.uint32))[self.rank]

    def shared(self, method: str) -> Stream:
        """The stream that all ranks share, at step 0; its key is the same in all steps."""
        return Stream(self.seed, method, self.name, None, 0)
