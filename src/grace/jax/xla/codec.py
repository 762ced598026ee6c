"""Compressors inside XLA: rows of numbers to rows of a wire and back, as pure functions.

Letters: b rows of n numbers; wires are uint8 ``[b, w]`` with the bytes of the torch methods.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from grace.jax.xla.exact import product
from grace.jax.xla.place import TracedPeer
from grace.jax.xla.random import Array


@dataclass(frozen=True)
class Codec(abc.ABC):
    """A compressor of Grace, with its knobs, inside XLA."""

    compressor: Any

    def check(self) -> None:  # noqa: B027  # most take every knob
        """Refuses knobs that do not work inside XLA.

        Raises:
            ConfigurationError: which, and what is legal.
        """

    @abc.abstractmethod
    def encode(self, rows: Array, place: TracedPeer, hop: int, keep_rest: bool) -> tuple[Array, Array]:
        """Finite float32 ``[b, n]`` -> (wire ``[b, w]``, what it leaves out ``[b, n]``)."""

    @abc.abstractmethod
    def decode(self, wire: Array, n: int, weight: float, place: TracedPeer) -> Array:
        """``[b, w]`` -> float32 ``[b, n]``: weight times what the wire says, rounded as Grace's kernels do."""

    def add(self, out: Array, wire: Array, weight: float, place: TracedPeer) -> Array:
        """``out [n]`` plus weight times what the wire ``[w]`` says."""
        return out + self.decode(wire[None], out.shape[0], weight, place)[0]


def scale_by(x: Array, weight: float, place: TracedPeer) -> Array:
    """``weight * x``, of any shape, rounded once."""
    return x if weight == 1.0 else product(x, jnp.float32(weight), place.zero)
