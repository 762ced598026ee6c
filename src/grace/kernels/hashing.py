"""Hash functions and the count sketch, in plain torch.

Letters: b rows of n numbers; R hash functions; a sketch has R rows of c cells; P = 2**31 - 1.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

PRIME = (1 << 31) - 1
_CHUNK = 1 << 18  # keys at a time: R int64 numbers for each are in memory


def hash_coefficients(words: Tensor, degree: int) -> Tensor:
    """Random int32 words, R (degree + 1) or more of them -> int64 ``[R, degree + 1]`` in [0, P), the first not zero."""
    out = (words.reshape(-1).long() & 0xFFFFFFFF) % PRIME
    out = out[: out.numel() // (degree + 1) * (degree + 1)].view(-1, degree + 1)
    out[:, 0].clamp_(min=1)
    return out


def polynomial_hash(coefficients: Tensor, keys: Tensor) -> Tensor:
    """``[R, d + 1]`` and keys ``[m]`` in [0, P) -> ``[R, m]``: ``(a_0 i^d + ... + a_d) mod P``, (d+1)-wise independent.

    No product reaches 2**62, so int64 holds it.
    """
    out = coefficients[:, :1].expand(-1, keys.numel())
    for power in range(1, coefficients.shape[1]):
        out = (out * keys + coefficients[:, power, None]) % PRIME
    return out


def sketch_hashes(words: Tensor, rows: int, n: int, cols: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Piece by piece for the keys 0..n-1: their slice, their cells ``[R, m]`` (pairwise independent), and their signs
    ``[R, m]``, 1 or -1 (4-wise independent). ``words`` are 6 R random int32 numbers.
    """
    flat = words.reshape(-1)
    cell = hash_coefficients(flat[: 2 * rows], 1)
    sign = hash_coefficients(flat[2 * rows : 6 * rows], 3)
    for start in range(0, n, _CHUNK):
        piece = slice(start, min(n, start + _CHUNK))
        keys = torch.arange(piece.start, piece.stop, device=words.device)
        yield piece, polynomial_hash(cell, keys) % cols, 1 - 2 * (polynomial_hash(sign, keys) & 1)


def sketch_add_(sketch: Tensor, numbers: Tensor, cells: Tensor, signs: Tensor) -> None:
    """``sketch[:, j, cells[j, i]] += signs[j, i] numbers[:, i]``: ``[b, R, c]``, ``[b, m]``, ``[R, m]``, ``[R, m]``."""
    signed = numbers[:, None, :].to(sketch.dtype) * signs  # [b, R, m]
    sketch.scatter_add_(2, cells.expand_as(signed), signed)


def sketch_query(sketch: Tensor, cells: Tensor, signs: Tensor) -> Tensor:
    """``[b, m]``: the median over j of ``signs[j, i] sketch[:, j, cells[j, i]]``; of an even number the lower."""
    b, (rows, m) = sketch.shape[0], cells.shape
    return (sketch.gather(2, cells.expand(b, rows, m)) * signs).median(dim=1).values
