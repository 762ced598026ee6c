"""The specification, in plain torch: only operations that every processor rounds alike, in a fixed order."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from grace.compute.portable import square_root, sum_by_halves
from grace.errors import InputError
from grace.flags.finite import Flag, flag
from grace.kernels.low_rank.parts import PIECE, SPAN

_LANES = 16  # of a row's sum
_CHUNK = 1 << 18  # about as many numbers of a matrix at a time: temporary memory is small


def project_rows(matrix: Tensor, q: Tensor) -> Tensor:
    if not matrix.is_cpu:
        return q @ matrix.mT
    (m, l), r = matrix.shape, q.shape[0]
    out = matrix.new_zeros(r, m)
    for start in range(0, l, SPAN):
        rows, others = (_in_lanes(part[:, start : start + SPAN]) for part in (matrix, q))
        sums = matrix.new_zeros(r, m, _LANES)
        for t in range(rows.shape[1]):
            sums += rows[None, :, t] * others[:, None, t]
        for half in (8, 4, 2, 1):
            sums = sums[..., :half] + sums[..., half : 2 * half]
        out += sums[..., 0]
    return out


def _in_lanes(part: Tensor) -> Tensor:
    """``[a, n]`` -> ``[a, T, 16]``, zeros after the end."""
    padded = torch.nn.functional.pad(part, (0, -part.shape[1] % _LANES))
    return padded.reshape(part.shape[0], padded.shape[1] // _LANES, _LANES)


def project_columns(matrix: Tensor, p: Tensor) -> Tensor:
    if not matrix.is_cpu:
        return p @ matrix
    (m, l), r = matrix.shape, p.shape[0]
    sums = matrix.new_zeros(max(1, -(-m // PIECE)), r, l)
    for i in range(min(m, PIECE)):
        rows = matrix[i::PIECE]  # [pieces that have an i-th row, l]
        sums[: len(rows)] += p[:, i::PIECE].mT[:, :, None] * rows[:, None, :]
    out = sums[0].clone()
    for more in sums[1:]:
        out += more
    return out


def split_low_rank(x: Tensor | None, p: Tensor, own: Tensor, q: Tensor, out: Tensor) -> None:
    for rows in _chunks(out):
        mean, rest = out[rows].zero_(), None if x is None else x[rows]
        for factor, of_own, of_all in zip(p[:, rows, None], own, q, strict=True):  # [rows, 1], [l], [l]
            mean += factor * of_all
            if rest is not None:
                rest -= factor * of_own


def add_low_rank_(out: Tensor, p: Tensor, q: Tensor, scale: float) -> None:
    for rows in _chunks(out):
        product = torch.zeros_like(out[rows])
        for factor, other in zip(p[:, rows, None], q, strict=True):
            product += factor * other
        out[rows] += product.mul_(scale)


def _chunks(matrix: Tensor) -> Iterator[slice]:
    m, l = matrix.shape
    each = max(1, _CHUNK // max(1, l)) if matrix.is_cpu else max(1, m)  # elsewhere calls cost more than memory does
    for start in range(0, m, each):
        yield slice(start, start + each)


def orthonormalize(p: Tensor) -> Tensor:
    check_rows(p)
    r = len(p)
    largest = p.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(p.dtype).tiny)
    a = p.double() / largest.double()  # rows become the vectors of the reflections, and then the basis
    taus: list[Tensor] = []
    for j in range(r):
        head = a[j, j].clone()
        a[j, : j + 1] = 0
        tail = sum_by_halves(a[j] * a[j])
        norm = square_root(head * head + tail)
        end = torch.where(head < 0, norm, -norm)
        some = tail > 0
        taus.append(torch.where(some, (end - head) / end, 0.0))
        a[j] /= torch.where(some, head - end, 1.0)
        a[j, j : j + 1].fill_(1)  # an assignment would copy the number from the host
        _reflect(a[j + 1 :], a[j], taus[j])
    for j in range(r - 1, -1, -1):
        _reflect(a[j + 1 :], a[j], taus[j])
        unit = torch.zeros_like(a[j])
        unit[j : j + 1].fill_(1)
        a[j] = unit - taus[j] * a[j]
    return a.float()


def check_rows(p: Tensor) -> None:
    """True if the rows of p ``[r, m]`` can become orthonormal.

    Raises:
        InputError: r > m.
    """
    r, m = p.shape
    if r > m:
        raise InputError(f"kernels: {r} rows of {m} numbers cannot be orthonormal; use at most as many rows as numbers")


def _reflect(rows: Tensor, v: Tensor, tau: Tensor) -> None:
    """``rows [c, m] -= tau (v . row) v`` for each of them."""
    if len(rows):
        rows -= (tau * sum_by_halves(v * rows))[:, None] * v


def solve_ridge(p: Tensor, lam: float) -> Tensor:
    r = p.shape[0]
    x = p.double()
    gram = torch.stack([sum_by_halves(row * x) for row in x])  # [r, r]
    size = sum_by_halves(gram.diagonal()) / gram.new_full((), r)  # CUDA multiplies by a number's reciprocal
    gram.diagonal().add_(torch.where(size > 0, lam * size, 1.0))
    for k in range(r):  # Cholesky: the lower triangle, in place
        gram[k:, k] /= square_root(gram[k, k])
        gram[k + 1 :, k + 1 :] -= gram[k + 1 :, k, None] * gram[None, k + 1 :, k]
    for k in range(r):
        x[k] /= gram[k, k]
        x[k + 1 :] -= gram[k + 1 :, k, None] * x[k]
    for k in range(r - 1, -1, -1):
        x[k] /= gram[k, k]
        x[:k] -= gram[k, :k, None] * x[k]
    return x


def bound_rows(factor: Tensor) -> tuple[Tensor, Tensor]:
    scale = square_root(sum_by_halves(factor.square()).max()) * math.sqrt(factor.shape[1])
    scale = torch.where(scale > 0, scale, 1.0)
    return (factor * scale.reciprocal()).float(), scale


def unit_factor(factor: Tensor) -> Tensor:
    return factor / factor.abs().max().clamp_min(torch.finfo(factor.dtype).tiny)


def unit_rows(q: Tensor) -> Tensor:
    largest = q.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(q.dtype).tiny)
    unit = q / largest
    norm = square_root(sum_by_halves(unit.double().square())).float()[:, None]  # at least 1, or 0
    return unit / (norm.clamp_min(0.5) * math.sqrt(q.shape[1]))


def product_fits(p: Tensor, q: Tensor) -> Flag:
    most = p.abs().amax(dim=1).double() @ q.abs().amax(dim=1).double()
    return flag(most <= torch.finfo(torch.float32).max / 2)
