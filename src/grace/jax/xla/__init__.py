"""Compression inside XLA: pure functions under ``jit`` and ``shard_map``, no callback."""

from __future__ import annotations

from grace.jax.xla.sharding import shard
from grace.jax.xla.step_bytes import StepBytes, step_bytes
from grace.jax.xla.transform import XlaMeanState, compressed_mean, state_specs

__all__ = ["StepBytes", "XlaMeanState", "compressed_mean", "shard", "state_specs", "step_bytes"]
