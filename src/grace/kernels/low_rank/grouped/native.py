"""The native kernels for thin factors over the matrices of a bucket on the CPU: one call of native code for all of them.

A library that was built before that could be leaves them to the reference.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from grace.compute import native
from grace.flags.finite import on_host
from grace.kernels import low_rank
from grace.kernels.call_table import THREADS, CallTable, possible
from grace.kernels.low_rank import native as declared  # noqa: F401 - says what the kernels take
from grace.kernels.low_rank.grouped import Factors
from grace.kernels.tensor_list import TensorList

_M, _R, _ALL = 0, 2, (0, 1, 2)  # sides of a matrix
_HALF = torch.finfo(torch.float32).max / 2


def unit_rows_many(rights: Tensor, states: TensorList, factors: Factors) -> None:
    """Makes one pass for all states ``[l, r]`` of one length."""
    if len(states) == 1:
        ((_, l, r),), x = factors.sides, states.xs[0]
        rights.view(r, l).copy_(low_rank.unit_rows(x.view(l, r).mT.contiguous()))
        return
    for alike, ranks, l in factors.once("alike", lambda: _of_one_length(factors)):
        outs = [rights[factors.rights[t] :][: r * l].view(r, l) for t, r in zip(alike, ranks, strict=True)]
        rows = [states.xs[t].view(l, -1).mT for t in alike]
        if len(alike) == 1:
            outs[0].copy_(low_rank.unit_rows(rows[0].contiguous()))
        else:
            torch._foreach_copy_(outs, list(low_rank.unit_rows(torch.cat(rows)).split_with_sizes(ranks)))


def _of_one_length(factors: Factors) -> list[tuple[list[int], list[int], int]]:
    """The matrices of each length l, and their ranks."""
    lengths = sorted({l for _, l, _ in factors.sides})
    alike = [([t for t, of in enumerate(factors.sides) if of[1] == l], l) for l in lengths]
    return [(those, [factors.sides[t][2] for t in those], l) for those, l in alike]


def project_rows_many(message: Tensor, matrices: TensorList, factors: Factors, rights: Tensor) -> Any:
    at = matrices.addresses[0], (rights, factors.rights[:-1]), (message, factors.places)
    return _call(factors, "project_rows", at)


def project_columns_many(rights: Tensor, matrices: TensorList, factors: Factors, lefts: Tensor) -> Any:
    at = matrices.addresses[0], (lefts, factors.lefts[:-1]), (rights, factors.rights[:-1])
    return _call(factors, "project_columns", at)


def orthonormalize_many(lefts: Tensor, message: Tensor, factors: Factors) -> Any:
    at = (message, factors.places), (lefts, factors.lefts[:-1])
    return _call(factors, "orthonormalize", at, (_R, _M))


def fit_many(rights: Tensor, factors: Factors, lefts: Tensor, matrices: TensorList, poison: bool) -> Any:
    """True for all, as a rule, by the largest number of the right factors ``[s]``: those of a basis are at most 1, but for
    rounding. Else each is looked at.
    """
    if not on_host(rights.device):
        return NotImplemented
    most = torch.linalg.vector_norm(rights, math.inf).item()
    return matrices.all_set if most * 1.01 * factors.highest <= _HALF else NotImplemented


def split_low_rank_many(
    lefts: Tensor, matrices: TensorList, factors: Factors, owns: Tensor | None, rights: Tensor
) -> Any:
    (xs, _, outs), means = matrices.addresses, (rights, factors.rights[:-1])
    own = means if owns is None else (owns, factors.rights[:-1])
    at = 0 if owns is None else xs, outs, (lefts, factors.lefts[:-1]), own, means
    return _call(factors, "split_low_rank", at)


def succeed_many(flags: Tensor, states: TensorList, factors: Factors, rights: Tensor) -> Any:
    if not on_host(flags.device):
        return NotImplemented
    assert states.rests is not None
    rooms, values = [], []
    for t, (fine, (_, l, r)) in enumerate(zip(flags.tolist(), factors.sides, strict=True)):
        begin = factors.rights[t]
        rooms.append(states.rests[t].view(l, r))
        values.append(rights[begin : begin + r * l].view(r, l).mT if fine else states.xs[t].view(l, r))
    torch._foreach_copy_(rooms, values)
    return None


def add_low_rank_many(lefts: Tensor, matrices: TensorList, factors: Factors, rights: Tensor, scale: float) -> Any:
    at = matrices.addresses[0], (lefts, factors.lefts[:-1]), (rights, factors.rights[:-1])
    return _call(factors, "add_low_rank", at, _ALL, scale)


def _call(factors: Factors, name: str, addresses: tuple[Any, ...], sides: tuple[int, ...] = _ALL, *more: float) -> Any:
    """Calls a kernel for each matrix, with addresses, of which those of factors are given by a tensor ``[s]`` and where each
    begins there; with these sides of the matrix; and with what is the same for all.
    """
    tables: dict[Any, CallTable | None] = factors.tables
    key = (name, more)
    if key not in tables:
        tables[key] = _table(factors, name, len(addresses), sides, more)
    table = tables[key]
    if table is None:
        return NotImplemented
    table.aim(addresses)
    table.run()
    return None


def _table(
    factors: Factors, name: str, slots: int, sides: tuple[int, ...], more: tuple[float, ...]
) -> CallTable | None:
    if not possible():
        return None
    calls = [(*[None] * slots, *(of[side] for side in sides), *more, THREADS) for of in factors.sides]
    return CallTable(getattr(native.c, name), calls)
