"""The native kernels. Each function returns None, or False, where there is none for these tensors."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from grace import native
from grace.errors import InputError
from grace.kernels import check

_PROJECT_ROWS, _PROJECT_COLUMNS = (
    native.declare(name, *[native.P] * 3, *[native.N] * 3, native.I) for name in ("project_rows", "project_columns")
)
_SPLIT = native.declare("split_low_rank", *[native.P] * 5, *[native.N] * 3, native.I)
_ADD = native.declare("add_low_rank", *[native.P] * 3, *[native.N] * 3, native.F, native.I)
_ORTHONORMALIZE = native.declare("orthonormalize", *[native.P] * 2, *[native.N] * 2, native.I)
_SOLVE_RIDGE = native.declare("solve_ridge", *[native.P] * 2, *[native.N] * 2, ctypes.c_double, native.I)


def project_rows(matrix: Tensor, q: Tensor) -> Tensor | None:
    """See :func:`grace.kernels.low_rank.project_rows`."""
    fast = native.function(_PROJECT_ROWS) if matrix.is_cpu else None
    if fast is None:
        return None
    (m, l), r = matrix.shape, q.shape[0]
    out = torch.empty(r, m)
    fast(check.numbers("matrix", matrix), check.numbers("q", q, (r, l)), out.data_ptr(), m, l, r, native.threads())
    return out


def project_columns(matrix: Tensor, p: Tensor) -> Tensor | None:
    """See :func:`grace.kernels.low_rank.project_columns`."""
    fast = native.function(_PROJECT_COLUMNS) if matrix.is_cpu else None
    if fast is None:
        return None
    (m, l), r = matrix.shape, p.shape[0]
    out = torch.empty(r, l)
    fast(check.numbers("matrix", matrix), check.numbers("p", p, (r, m)), out.data_ptr(), m, l, r, native.threads())
    return out


def split_low_rank(x: Tensor | None, p: Tensor, mine: Tensor, q: Tensor, out: Tensor) -> bool:
    """See :func:`grace.kernels.low_rank.split_low_rank`."""
    fast = native.function(_SPLIT) if out.is_cpu else None
    if fast is None:
        return False
    (r, m), l = p.shape, q.shape[1]
    fast(
        None if x is None else check.numbers("x", x, (m, l)),
        check.numbers("out", out, (m, l)),
        check.numbers("p", p),
        check.numbers("mine", mine, (r, l)),
        check.numbers("q", q, (r, l)),
        *(m, l, r, native.threads()),
    )
    return True


def add_low_rank_(out: Tensor, p: Tensor, q: Tensor, scale: float) -> bool:
    """See :func:`grace.kernels.low_rank.add_low_rank_`."""
    fast = native.function(_ADD) if out.is_cpu else None
    if fast is None:
        return False
    (m, l), r = out.shape, p.shape[0]
    at = check.numbers("out", out), check.numbers("p", p, (r, m)), check.numbers("q", q, (r, l))
    fast(*at, m, l, r, scale, native.threads())
    return True


def orthonormalize(p: Tensor) -> Tensor | None:
    """See :func:`grace.kernels.low_rank.orthonormalize`."""
    fast = native.function(_ORTHONORMALIZE) if p.is_cpu else None
    if fast is None:
        return None
    r, m = p.shape
    if r > m:
        raise InputError(f"kernels: {r} rows of {m} numbers cannot be orthonormal; use at most as many rows as numbers")
    out = torch.empty(r, m)
    fast(check.numbers("p", p), out.data_ptr(), r, m, native.threads())
    return out


def solve_ridge(p: Tensor, lam: float) -> Tensor | None:
    """See :func:`grace.kernels.low_rank.solve_ridge`."""
    fast = native.function(_SOLVE_RIDGE) if p.is_cpu else None
    if fast is None:
        return None
    r, m = p.shape
    out = torch.empty(r, m, dtype=torch.float64)
    fast(check.numbers("p", p), out.data_ptr(), r, m, lam, native.threads())
    return out
