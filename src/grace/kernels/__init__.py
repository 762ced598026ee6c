"""Coarse operations on rows of numbers, the hot paths of the methods. ``reference`` specifies each of them."""

from __future__ import annotations

from grace.kernels.quantise import MOST, block_divide, block_sum, nearest
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
    select_at_least,
    select_topk,
    spread,
    stochastic_round,
    unpack,
    unpack_trits,
)
from grace.kernels.spans import Span, spans

__all__ = [
    "Span",
from grace.kernels.rotation import hadamard

__all__ = [
    "MOST",
    "block_abs_max",
    "block_abs_mean",
    "block_count",
    "block_divide",
    "block_norm",
    "block_sizes",
    "block_sum",
    "hadamard",
    "nearest",
    "pack",
    "pack_trits",
    "packed_bytes",
    "packed_trits_bytes",
    "select_at_least",
    "select_topk",
    "spans",
    "spread",
    "stochastic_round",
    "unpack",
    "unpack_trits",
]
