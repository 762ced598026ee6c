"""The bindings of the native kernels for thin factors."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.compute import native
from grace.compute.native import D, F, I, N, P
from grace.kernels import check
from grace.kernels.low_rank.reference import check_rows

for name in ("project_rows", "project_columns"):
    native.declare(name, P, P, P, N, N, N, I)
native.declare("split_low_rank", P, P, P, P, P, N, N, N, I)
native.declare("add_low_rank", P, P, P, N, N, N, F, I)
native.declare("orthonormalize", P, P, N, N, I)
native.declare("solve_ridge", P, P, N, N, D, I)


def project_rows(matrix: Tensor, q: Tensor) -> Tensor:
    (m, l), r = matrix.shape, q.shape[0]
    out = torch.empty(r, m, dtype=torch.float32, device="cpu")
    native.c.project_rows(
        check.numbers("matrix", matrix),
        check.numbers("q", q, (r, l)),
        check.numbers("out", out),
        m,
        l,
        r,
        native.threads(),
    )
    return out


def project_columns(matrix: Tensor, p: Tensor) -> Tensor:
    (m, l), r = matrix.shape, p.shape[0]
    out = torch.empty(r, l, dtype=torch.float32, device="cpu")
    native.c.project_columns(
        check.numbers("matrix", matrix),
        check.numbers("p", p, (r, m)),
        check.numbers("out", out),
        m,
        l,
        r,
        native.threads(),
    )
    return out


def split_low_rank(x: Tensor | None, p: Tensor, own: Tensor, q: Tensor, out: Tensor) -> None:
    (r, m), l = p.shape, q.shape[1]
    native.c.split_low_rank(
        None if x is None else check.numbers("x", x, (m, l)),
        check.numbers("out", out, (m, l)),
        check.numbers("p", p),
        check.numbers("own", own, (r, l)),
        check.numbers("q", q, (r, l)),
        *(m, l, r, native.threads()),
    )


def add_low_rank_(out: Tensor, p: Tensor, q: Tensor, scale: float) -> None:
    (m, l), r = out.shape, p.shape[0]
    given = check.numbers("out", out), check.numbers("p", p, (r, m)), check.numbers("q", q, (r, l))
    native.c.add_low_rank(*given, m, l, r, scale, native.threads())


def orthonormalize(p: Tensor) -> Tensor:
    check_rows(p)
    r, m = p.shape
    out = torch.empty(r, m, dtype=torch.float32, device="cpu")
    native.c.orthonormalize(check.numbers("p", p), check.numbers("out", out), r, m, native.threads())
    return out


def solve_ridge(p: Tensor, lam: float) -> Tensor:
    r, m = p.shape
    out = torch.empty(r, m, dtype=torch.float64, device="cpu")
    at = native.address("out", out, torch.float64, r * m)
    native.c.solve_ridge(check.numbers("p", p), at, r, m, lam, native.threads())
    return out
