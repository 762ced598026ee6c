"""Coarse operations on rows of numbers, the hot paths of the methods. ``reference`` specifies each of them."""

from __future__ import annotations

from grace.kernels.quantise import MOST, block_divide, block_sum, nearest
from grace.kernels.hashing import PRIME, hash_coefficients, polynomial_hash, sketch_add_, sketch_hashes, sketch_query
from grace.kernels.quantiles import quantile_buckets
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
    "PRIME",
    "block_abs_max",
    "block_abs_mean",
    "block_count",
    "block_divide",
    "block_norm",
    "block_sizes",
    "block_sum",
    "hadamard",
    "nearest",
    "hash_coefficients",
    "pack",
    "pack_trits",
    "packed_bytes",
    "packed_trits_bytes",
    "select_at_least",
    "select_topk",
    "spans",
    "polynomial_hash",
    "quantile_buckets",
    "select_topk",
    "sketch_add_",
    "sketch_hashes",
    "sketch_query",
    "spread",
    "stochastic_round",
    "unpack",
    "unpack_trits",
]
