"""Thin factors of large matrices: products with them, orthonormal bases, ridge regression.

A factor is held as r rows: p ``[r, m]`` and q ``[r, l]`` for a matrix M ``[m, l]`` that is about ``P Q^T = p^T q``. All
tensors are float32 and contiguous.

Ranks compute most of this from data that they share, so one bit of difference would stay in their models. All sums have one
fixed order, and no product is contracted with a sum: the native kernels give the bits that ``reference`` specifies, on every
instruction set and for any number of threads.
"""

from __future__ import annotations

from torch import Tensor

from grace.compute.dispatch import operation
from grace.flags.finite import Flag

__all__ = [
    "add_low_rank_", "bound_rows", "orthonormalize", "product_fits", "project_columns", "project_rows", "solve_ridge",
    "split_low_rank", "unit_factor", "unit_rows",
]  # fmt: skip


@operation
def project_rows(matrix: Tensor, q: Tensor) -> Tensor:
    """``[m, l]`` and ``[r, l]`` -> ``[r, m]``: ``(M Q)^T``, the left factor to a given right one.

    Number j of 1,024 of a row goes to lane j mod 16, which adds in order; then the upper half of the lanes is added to the
    lower, four times; then the sums of all 1,024s are added in order. On other devices than the CPU, without Triton's kernels,
    it is torch's product: nobody else has this worker's matrix.

    Raises:
        InputError: another dtype, shape or memory layout.
    """


@operation
def project_columns(matrix: Tensor, p: Tensor) -> Tensor:
    """``[m, l]`` and ``[r, m]`` -> ``[r, l]``: ``P^T M``, the right factor to a given left one.

    256 rows are added in order, then the sums of all 256s. On other devices than the CPU, without Triton's kernels, it is
    torch's product.

    Raises:
        InputError: as :func:`project_rows`.
    """


@operation
def split_low_rank(x: Tensor | None, p: Tensor, own: Tensor, q: Tensor, out: Tensor) -> None:
    """``x -= p^T own``, what is left of a worker's matrix (None: it is not wanted), and ``out = p^T q``, the mean: one pass.

    x and out ``[m, l]``, p ``[r, m]``, own and q ``[r, l]``. ``out`` must not overlap the others. Both add up in the order
    of r, ``out`` from zero.

    Raises:
        InputError: as :func:`project_rows`.
    """


@operation
def add_low_rank_(out: Tensor, p: Tensor, q: Tensor, scale: float) -> None:
    """``out += scale (p^T q)``: ``[m, l]``, ``[r, m]``, ``[r, l]``. The product adds up in the order of r, from zero.

    Raises:
        InputError: as :func:`project_rows`.
    """


@operation
def orthonormalize(p: Tensor) -> Tensor:
    """``[r, m]``, r <= m, finite -> ``[r, m]``: orthonormal rows whose span holds p's rows; where p has fewer directions than
    rows, others complete it. Householder reflections in float64, with LAPACK's signs; sums by halves.

    Raises:
        InputError: as :func:`project_rows`, or r > m.
    """


@operation
def solve_ridge(p: Tensor, lam: float) -> Tensor:
    """``[r, m]``, finite -> ``[r, m]`` float64: ``(P^T P + lam t I)^-1 P^T`` with ``t = trace(P^T P) / r``; 0 for 0.

    Cholesky decomposition in float64; sums by halves.

    Raises:
        InputError: as :func:`project_rows`.
    """


@operation
def bound_rows(factor: Tensor) -> tuple[Tensor, Tensor]:
    """``[r, s]`` float64 -> float32 with rows of norm 1/sqrt(s) or less, so that a product with it cannot overflow, and
    what it was divided by, float64 of no dimension. Nobody asks the host.
    """


@operation
def unit_factor(factor: Tensor) -> Tensor:
    """A factor, of any shape, scaled so that its largest number is 1; the product of both does not depend on it. Zero
    stays zero.
    """


@operation
def unit_rows(q: Tensor) -> Tensor:
    """The rows of q ``[r, l]`` scaled to norm 1/sqrt(l): a product with them neither overflows nor vanishes. A row that
    vanished is left zero: the orthonormal basis of the product then has another direction in its place.
    """


@operation
def product_fits(p: Tensor, q: Tensor) -> Flag:
    """True if the product of these factors, ``[r, m]`` and ``[r, l]``, is certainly at most half the largest float32:
    then neither it nor the mean of several such products overflows.
    """
