"""Hash functions and the count sketch.

Letters: b rows of n numbers; R hash functions; a sketch has R rows of c cells; P = 2**31 - 1.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from grace.compute.dispatch import operation

__all__ = ["PRIME", "hash_coefficients", "polynomial_hash", "sketch_add_", "sketch_hashes", "sketch_query"]

PRIME = (1 << 31) - 1


@operation
def hash_coefficients(words: Tensor, degree: int) -> Tensor:
    """Random int32 words, R (degree + 1) or more of them -> int64 ``[R, degree + 1]`` in [0, P), the first not zero."""


@operation
def polynomial_hash(coefficients: Tensor, keys: Tensor) -> Tensor:
    """``[R, d + 1]`` and keys ``[m]`` in [0, P) -> ``[R, m]``: ``(a_0 i^d + ... + a_d) mod P``, (d+1)-wise independent."""


@operation
def sketch_hashes(words: Tensor, rows: int, n: int, cols: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Piece by piece for the keys 0..n-1: their slice, their cells ``[R, m]`` (pairwise independent), and their signs
    ``[R, m]``, 1 or -1 (4-wise independent). ``words`` are 6 R random int32 numbers.
    """


@operation
def sketch_add_(sketch: Tensor, numbers: Tensor, cells: Tensor, signs: Tensor) -> None:
    """``sketch[:, j, cells[j, i]] += signs[j, i] numbers[:, i]``: ``[b, R, c]``, ``[b, m]``, ``[R, m]``, ``[R, m]``."""


@operation
def sketch_query(sketch: Tensor, cells: Tensor, signs: Tensor) -> Tensor:
    """``[b, m]``: the median over j of ``signs[j, i] sketch[:, j, cells[j, i]]``; for an even R the lower one."""
