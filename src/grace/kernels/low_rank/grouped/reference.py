"""The specification: one matrix after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from grace.kernels import low_rank
from grace.kernels.finite import all_finite
from grace.kernels.low_rank.grouped import Factors
from grace.kernels.tensor_list import TensorList


def draw_many(storage: Tensor, drawn: TensorList, step: int) -> None:
    for x, stream in zip(drawn.xs, drawn.streams, strict=True):
        x.copy_(replace(stream, step=step).normal(x.numel(), x.device)[None])


def unit_rows_many(rights: Tensor, states: TensorList, factors: Factors) -> None:
    for (_, l, r), state, right in zip(factors.sides, states.xs, _rights(rights, factors), strict=True):
        right.copy_(low_rank.unit_rows(state.view(l, r).mT.contiguous()))


def unit_columns_many(
    lefts: Tensor, columns: TensorList, factors: Factors, drawn: TensorList | None, share: float
) -> None:
    for t, (left, x) in enumerate(zip(_lefts(lefts, factors), columns.xs, strict=True)):
        rows = low_rank.unit_factor(x.view(left.shape[1], -1))
        if drawn is not None:
            rows = rows + drawn.xs[t].view(rows.shape) * share
        left.copy_(rows.mT)


def solve_ridge_many(lefts: Tensor, narrow: Tensor, factors: Factors, lam: float) -> None:
    for left, out in zip(_lefts(lefts, factors), _lefts(narrow, factors), strict=True):
        bounded, scale = low_rank.bound_rows(low_rank.solve_ridge(left, lam))
        out.copy_(bounded)
        left.mul_(scale)


def project_rows_many(message: Tensor, matrices: TensorList, factors: Factors, rights: Tensor) -> None:
    for left, matrix, right in zip(
        _places(message, factors), _matrices(matrices, factors), _rights(rights, factors), strict=True
    ):
        left.copy_(low_rank.project_rows(matrix, right))


def project_columns_many(rights: Tensor, matrices: TensorList, factors: Factors, lefts: Tensor) -> None:
    for right, matrix, left in zip(
        _rights(rights, factors), _matrices(matrices, factors), _lefts(lefts, factors), strict=True
    ):
        right.copy_(low_rank.project_columns(matrix, left))


def orthonormalize_many(lefts: Tensor, message: Tensor, factors: Factors) -> None:
    for left, factor in zip(_lefts(lefts, factors), _places(message, factors), strict=True):
        left.copy_(low_rank.orthonormalize(factor))


def fit_many(rights: Tensor, factors: Factors, lefts: Tensor, matrices: TensorList, poison: bool) -> Tensor:
    flags = []
    for t, (left, right) in enumerate(zip(_lefts(lefts, factors), _rights(rights, factors), strict=True)):
        fits = low_rank.product_fits(left, right)
        if fits is False:  # it was only a bound
            fits = all_finite(_left_over(matrices.xs[t], left, right) if poison else _rests(matrices)[t])
        flags.append(torch.as_tensor(fits, device=rights.device, dtype=torch.bool))
        if poison:
            right.masked_fill_(~flags[-1], math.nan)
    return torch.stack(flags)


def _left_over(x: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """The matrix ``[1, m l]`` without the product of these factors, ``[m, l]``."""
    left_over = x.view(left.shape[1], right.shape[1]).clone()
    low_rank.add_low_rank_(left_over, left, right, -1.0)
    return left_over


def split_low_rank_many(
    lefts: Tensor, matrices: TensorList, factors: Factors, owns: Tensor | None, rights: Tensor
) -> None:
    owned = _rights(rights if owns is None else owns, factors)
    for matrix, out, left, own, right in zip(
        _matrices(matrices, factors),
        _rests(matrices),
        _lefts(lefts, factors),
        owned,
        _rights(rights, factors),
        strict=True,
    ):
        low_rank.split_low_rank(None if owns is None else matrix, left, own, right, out.view(matrix.shape))


def succeed_many(flags: Tensor, states: TensorList, factors: Factors, rights: Tensor) -> None:
    assert states.rests is not None
    for flag, old, new, right in zip(flags, states.xs, states.rests, _rights(rights, factors), strict=True):
        new.copy_(torch.where(flag, right.mT.reshape(1, -1), old))


def add_low_rank_many(lefts: Tensor, matrices: TensorList, factors: Factors, rights: Tensor, scale: float) -> None:
    for matrix, left, right in zip(
        _matrices(matrices, factors), _lefts(lefts, factors), _rights(rights, factors), strict=True
    ):
        low_rank.add_low_rank_(matrix, left, right, scale)


def gather_rows_many(flat: Tensor, columns: TensorList, factors: Factors, right: bool) -> None:
    for rows, x in zip((_rights if right else _lefts)(flat, factors), columns.xs, strict=True):
        rows.copy_(x.view(rows.shape[1], -1).mT)


def scatter_rows_many(flat: Tensor, columns: TensorList, factors: Factors, right: bool) -> None:
    for rows, x in zip((_rights if right else _lefts)(flat, factors), columns.xs, strict=True):
        x.copy_(rows.mT.reshape(1, -1))


def _rests(matrices: TensorList) -> Sequence[Tensor]:
    assert matrices.rests is not None
    return matrices.rests


def _matrices(matrices: TensorList, factors: Factors) -> Iterator[Tensor]:
    for x, (m, l, _) in zip(matrices.xs, factors.sides, strict=True):
        yield x.view(m, l)


def _lefts(lefts: Tensor, factors: Factors) -> Iterator[Tensor]:
    for flat, (_, _, r) in zip(factors.cut(lefts, factors.lefts), factors.sides, strict=True):
        yield flat.view(r, -1)


def _rights(rights: Tensor, factors: Factors) -> Iterator[Tensor]:
    for flat, (_, _, r) in zip(factors.cut(rights, factors.rights), factors.sides, strict=True):
        yield flat.view(r, -1)


def _places(message: Tensor, factors: Factors) -> Iterator[Tensor]:
    for place, (m, _, r) in zip(factors.places, factors.sides, strict=True):
        yield message[place : place + r * m].view(r, m)
