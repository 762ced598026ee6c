"""Thin factors of large matrices: products with them, orthonormal bases, ridge regression.

A factor is held as r rows: ``p [r, m]`` and ``q [r, l]`` for a matrix M ``[m, l]`` that is about ``P Q^T = p^T q``.

Ranks compute most of this from what they share, so that one bit of difference would stay in their models: all sums have one
fixed order, no product is contracted with a sum, and ``reference``, which specifies the bits, and the native kernels agree in all of
them, on every instruction set and for any number of threads.
"""

from __future__ import annotations

from torch import Tensor

from grace.kernels.low_rank import native, reference


def project_rows(matrix: Tensor, q: Tensor) -> Tensor:
    """``[m, l]`` and ``[r, l]`` -> ``[r, m]``: ``(M Q)^T``, the left factor to a given right one. float32, contiguous.

    Of each 1,024 numbers of a row, number j goes to lane j mod 16, which adds in order; then the upper half of the lanes is added to
    the lower, four times; then what 1,024 numbers gave is added in order. On other devices than the CPU it is torch's product: a
    worker computes it of a matrix that nobody else has.

    Raises:
        InputError: another dtype, shape or memory layout.
    """
    out = native.project_rows(matrix, q)
    return reference.project_rows(matrix, q) if out is None else out


def project_columns(matrix: Tensor, p: Tensor) -> Tensor:
    """``[m, l]`` and ``[r, m]`` -> ``[r, l]``: ``P^T M``, the right factor to a given left one. float32, contiguous.

    256 rows are added in order, then what 256 rows gave is added in order. On other devices it is torch's product.

    Raises:
        InputError: as :func:`project_rows`.
    """
    out = native.project_columns(matrix, p)
    return reference.project_columns(matrix, p) if out is None else out


def split_low_rank(x: Tensor | None, p: Tensor, mine: Tensor, q: Tensor, out: Tensor) -> None:
    """``x -= p^T mine``, what is left of a worker's matrix (None: nobody wants it), and ``out = p^T q``, the mean, in one pass.

    x and out ``[m, l]``, p ``[r, m]``, mine and q ``[r, l]``; float32, contiguous. ``out`` must not overlap the others. Both add up
    in the order of r, ``out`` from zero.

    Raises:
        InputError: as :func:`project_rows`.
    """
    if not native.split_low_rank(x, p, mine, q, out):
        reference.split_low_rank(x, p, mine, q, out)


def add_low_rank_(out: Tensor, p: Tensor, q: Tensor, scale: float = 1.0) -> None:
    """``out += scale (p^T q)``: ``[m, l]``, ``[r, m]``, ``[r, l]``; float32, contiguous. Adds up in the order of r, from zero.

    Raises:
        InputError: as :func:`project_rows`.
    """
    if not native.add_low_rank_(out, p, q, scale):
        reference.add_low_rank_(out, p, q, scale)


def orthonormalize(p: Tensor) -> Tensor:
    """``[r, m]``, r <= m, float32, contiguous, finite -> ``[r, m]``: orthonormal rows that span a space in which p's rows lie; where
    p has fewer directions than rows, others complete it. Householder's reflections in float64, as in LAPACK; sums by halves.

    Raises:
        InputError: as :func:`project_rows`, or r > m.
    """
    out = native.orthonormalize(p)
    return reference.orthonormalize(p) if out is None else out


def solve_ridge(p: Tensor, lam: float) -> Tensor:
    """``[r, m]``, float32, contiguous, finite -> ``[r, m]`` float64: ``(P^T P + lam t I)^-1 P^T`` with ``t = trace(P^T P) / r``; 0 for 0.
    By Cholesky's decomposition in float64; sums by halves.

    Raises:
        InputError: as :func:`project_rows`.
    """
    out = native.solve_ridge(p, lam)
    return reference.solve_ridge(p, lam) if out is None else out


__all__ = ["add_low_rank_", "orthonormalize", "project_columns", "project_rows", "solve_ridge", "split_low_rank"]
