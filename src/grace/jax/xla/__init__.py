"""Compression inside XLA: pure functions under ``jit`` and ``shard_map``, no callback."""

from __future__ import annotations

from grace.jax.xla.transform import XlaMeanState, compressed_mean, state_specs

__all__ = ["XlaMeanState", "compressed_mean", "state_specs"]
