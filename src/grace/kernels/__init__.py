"""Coarse operations on rows of numbers, the hot paths of the methods. ``reference`` specifies each of them."""

from __future__ import annotations

from grace.kernels.codebook import Codebook, codebook, codebook_bytes, codebook_sum
from grace.kernels.finite import all_finite, sum_finite
from grace.kernels.hashing import PRIME, hash_coefficients, polynomial_hash, sketch_add_, sketch_hashes, sketch_query
from grace.kernels.indices import index_bits
from grace.kernels.low_rank import (
    add_low_rank_,
    orthonormalize,
    project_columns,
    project_rows,
    solve_ridge,
    split_low_rank,
)
from grace.kernels.momentum import accelerate, forget_sent
from grace.kernels.natural import natural, natural_bytes, natural_sum
from grace.kernels.packing import pack, unpack
from grace.kernels.portable import add_scaled_, cosine_and_sine, natural_log, sum_by_halves
from grace.kernels.quantiles import quantile_buckets
from grace.kernels.quantize import MOST, block_divide, nearest
from grace.kernels.reference import (
    block_count,
    block_sizes,
    ordered_sum,
    pack_trits,
    packed_bytes,
    packed_trits_bytes,
    spread,
    stochastic_round,
    unpack_trits,
)
from grace.kernels.rotation import hadamard
from grace.kernels.select import (
    narrowed,
    root_mean_square,
    select_at_least,
    select_topk,
    take_at_least,
    take_topk,
)
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
from grace.kernels.sparse import Part, pairs, sparse_sum, topk_wire
from grace.kernels.statistics import block_abs_max, block_abs_mean, block_norm, block_sum
from grace.kernels.stochastic import dequantize_sum, quantize, quantized_bytes
from grace.kernels.subset import add_subset, take_subset

__all__ = [
    "MOST",
    "PRIME",
    "Codebook",
    "Part",
    "Span",
    "accelerate",
    "add_low_rank_",
    "add_scaled_",
    "add_subset",
    "all_finite",
    "block_abs_max",
    "block_abs_mean",
    "block_count",
    "block_divide",
    "block_norm",
    "block_sizes",
    "block_sum",
    "codebook",
    "codebook_bytes",
    "codebook_sum",
    "cosine_and_sine",
    "dequantize_sum",
    "forget_sent",
    "hadamard",
    "hash_coefficients",
    "index_bits",
    "majority",
    "narrowed",
    "natural",
    "natural_bytes",
    "natural_log",
    "natural_sum",
    "nearest",
    "ordered_sum",
    "orthonormalize",
    "pack",
    "pack_trits",
    "packed_bytes",
    "packed_trits_bytes",
    "pairs",
    "polynomial_hash",
    "project_columns",
    "project_rows",
    "quantile_buckets",
    "quantize",
    "quantized_bytes",
    "root_mean_square",
    "scaled_signs",
    "scaled_signs_sum",
    "select_at_least",
    "select_topk",
    "sketch_add_",
    "sketch_hashes",
    "sketch_query",
    "solve_ridge",
    "spans",
    "sparse_sum",
    "split_low_rank",
    "spread",
    "stochastic_round",
    "sum_by_halves",
    "sum_finite",
    "take_at_least",
    "take_subset",
    "take_topk",
    "topk_wire",
    "two_means",
    "two_means_sum",
    "unpack",
    "unpack_trits",
    "votes",
    "votes_bytes",
    "votes_sum",
]
