"""Coarse operations on rows of numbers, the hot paths of the methods. ``reference`` specifies each of them."""

from __future__ import annotations

from grace.kernels.matrices import orthonormal, ridge, water_filling
from grace.kernels.reference import (
    block_abs_max,
    block_abs_mean,
    block_count,
    block_norm,
    block_sizes,
    pack,
    pack_trits,
    packed_bytes,
    packed_trits_bytes,
    select_topk,
    spread,
    stochastic_round,
    unpack,
    unpack_trits,
)

__all__ = [
    "block_abs_max",
    "block_abs_mean",
    "block_count",
    "block_norm",
    "block_sizes",
    "orthonormal",
    "pack",
    "pack_trits",
    "packed_bytes",
    "packed_trits_bytes",
    "ridge",
    "select_topk",
    "spread",
    "stochastic_round",
    "unpack",
    "unpack_trits",
    "water_filling",
]
