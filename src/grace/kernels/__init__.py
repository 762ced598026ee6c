"""Coarse operations on rows of numbers, the hot paths of the methods. ``reference`` specifies each of them."""

from __future__ import annotations

from grace.kernels.finite import all_finite
from grace.kernels.hashing import PRIME, hash_coefficients, polynomial_hash, sketch_add_, sketch_hashes, sketch_query
from grace.kernels.matrices import orthonormal, ridge, water_filling
from grace.kernels.quantiles import quantile_buckets
from grace.kernels.quantise import MOST, block_divide, nearest
from grace.kernels.reference import (
    block_count,
    block_sizes,
    ordered_sum,
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
from grace.kernels.rotation import hadamard
from grace.kernels.signs import (
    majority,
    scaled_signs,
    scaled_signs_sum,
    two_means,
    two_means_sum,
    votes,
    votes_bytes,
    votes_sum,
)
from grace.kernels.spans import Span, spans
from grace.kernels.statistics import block_abs_max, block_abs_mean, block_norm, block_sum
from grace.kernels.stochastic import dequantise_sum, quantise, quantised_bytes

__all__ = [
    "MOST",
    "PRIME",
    "Span",
    "all_finite",
    "block_abs_max",
    "block_abs_mean",
    "block_count",
    "block_divide",
    "block_norm",
    "block_sizes",
    "block_sum",
    "dequantise_sum",
    "hadamard",
    "hash_coefficients",
    "majority",
    "nearest",
    "ordered_sum",
    "orthonormal",
    "pack",
    "pack_trits",
    "packed_bytes",
    "packed_trits_bytes",
    "polynomial_hash",
    "quantile_buckets",
    "quantise",
    "quantised_bytes",
    "ridge",
    "scaled_signs",
    "scaled_signs_sum",
    "select_at_least",
    "select_topk",
    "sketch_add_",
    "sketch_hashes",
    "sketch_query",
    "spans",
    "spread",
    "stochastic_round",
    "two_means",
    "two_means_sum",
    "unpack",
    "unpack_trits",
    "votes",
    "votes_bytes",
    "votes_sum",
    "water_filling",
]
