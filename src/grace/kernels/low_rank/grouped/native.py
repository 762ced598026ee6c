"""The native kernels for thin factors over the matrices of a bucket on the CPU: one call of native code for all of them.

A library that was built before that could be leaves them to the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from grace.compute import native
from grace.flags.finite import on_host
from grace.kernels import low_rank
from grace.kernels.low_rank import native as declared  # noqa: F401 - says what the kernels take
from grace.kernels.low_rank.grouped import Factors
from grace.kernels.noting import THREADS, Call, Slot, Table, possible
from grace.kernels.tensor_list import TensorList

Words: TypeAlias = Mapping[Slot, tuple[Tensor | TensorList | None, int]]

_MATRIX, _LEFT, _OWN, _RIGHT, _OUT = (Slot() for _ in range(5))
_M, _L, _R, _LEFTS, _RIGHTS, _PLACE = range(6)  # columns of the factors' table
_HALF = torch.finfo(torch.float32).max / 2


def unit_rows_many(rights: Tensor, states: TensorList, factors: Factors) -> None:
    """Those of one length together."""

    def make() -> list[tuple[list[int], list[int], int]]:
        lengths = sorted({l for _, l, _ in factors.sides})
        alike = [([t for t, of in enumerate(factors.sides) if of[1] == l], l) for l in lengths]
        return [(those, [factors.sides[t][2] for t in those], l) for those, l in alike]

    outs = factors.cut(rights, factors.rights)
    for alike, ranks, l in factors.once("alike", make):
        rows = [(x if x.ndim == 2 else x.view(l, -1)).mT for x in [states.given[t] for t in alike]]
        if len(alike) == 1:
            outs[alike[0]].view(-1, l).copy_(low_rank.unit_rows(rows[0].contiguous()))
        else:
            unit = low_rank.unit_rows(torch.cat(rows)).split_with_sizes(ranks)
            torch._foreach_copy_([outs[t].view(-1, l) for t in alike], list(unit))


def project_rows_many(message: Tensor, matrices: TensorList, factors: Factors, rights: Tensor) -> Any:
    words: Words = {_MATRIX: (matrices, 0), _RIGHT: (rights, _RIGHTS), _OUT: (message, _PLACE)}
    return _call(factors, "project_rows", (_MATRIX, _RIGHT, _OUT, _M, _L, _R), words)


def project_columns_many(rights: Tensor, matrices: TensorList, factors: Factors, lefts: Tensor) -> Any:
    words: Words = {_MATRIX: (matrices, 0), _LEFT: (lefts, _LEFTS), _OUT: (rights, _RIGHTS)}
    return _call(factors, "project_columns", (_MATRIX, _LEFT, _OUT, _M, _L, _R), words)


def orthonormalize_many(lefts: Tensor, message: Tensor, factors: Factors) -> Any:
    words: Words = {_MATRIX: (message, _PLACE), _OUT: (lefts, _LEFTS)}
    return _call(factors, "orthonormalize", (_MATRIX, _OUT, _R, _M), words)


def fit_many(rights: Tensor, factors: Factors, lefts: Tensor, matrices: TensorList, poison: bool) -> Any:
    """Certainly all of them, as a rule: then nobody looks at each."""
    if not on_host(rights.device):
        return NotImplemented
    largest, most = (float(torch.linalg.vector_norm(x, math.inf)) for x in (rights, lefts))
    ranks = factors.once("ranks", lambda: max(r for _, _, r in factors.sides))
    return matrices.all_set if largest * most * 1.01 * ranks <= _HALF else NotImplemented


def split_low_rank_many(
    lefts: Tensor, matrices: TensorList, factors: Factors, owns: Tensor | None, rights: Tensor
) -> Any:
    words: Words = {
        _MATRIX: (None if owns is None else matrices, 0), _OUT: (matrices, 2), _LEFT: (lefts, _LEFTS),
        _OWN: (rights if owns is None else owns, _RIGHTS), _RIGHT: (rights, _RIGHTS),
    }  # fmt: skip
    return _call(factors, "split_low_rank", (_MATRIX, _OUT, _LEFT, _OWN, _RIGHT, _M, _L, _R), words)


def succeed_many(flags: Tensor, states: TensorList, factors: Factors, rights: Tensor) -> Any:
    assert states.rests is not None
    if not on_host(flags.device):
        return NotImplemented
    news = factors.cut(rights, factors.rights)
    if bool(flags.all()):
        assert states.given_rests is not None
        turned = [new.view(r, l).mT for new, (_, l, r) in zip(news, factors.sides, strict=True)]
        torch._foreach_copy_(list(states.given_rests), turned)
        return None
    for good, old, room, new, (_, l, r) in zip(
        flags.tolist(), states.xs, states.rests, news, factors.sides, strict=True
    ):
        room.view(l, r).copy_(new.view(r, l).mT if good else old.view(l, r))
    return None


def add_low_rank_many(lefts: Tensor, matrices: TensorList, factors: Factors, rights: Tensor, scale: float) -> Any:
    words: Words = {_OUT: (matrices, 0), _LEFT: (lefts, _LEFTS), _RIGHT: (rights, _RIGHTS)}
    return _call(factors, "add_low_rank", (_OUT, _LEFT, _RIGHT, _M, _L, _R, scale), words)


class _Calls:
    """The calls of a kernel for each matrix, and what the words in their slots were made of."""

    def __init__(self, factors: Factors, name: str, arguments: tuple[Slot | int | float, ...]):
        kernel: Callable[..., int] = getattr(native.c, name)
        self.table = Table(
            [
                Call(kernel, (*(line[each] if type(each) is int else each for each in arguments), THREADS), 0)
                for line in factors.table.tolist()
            ]
        )
        self.made_of: dict[Slot, Tensor | int] = {}


def _call(
    factors: Factors,
    name: str,
    arguments: tuple[Slot | int | float, ...],
    words: Words,
) -> Any:
    """Calls a kernel for each matrix: whole numbers among its arguments are columns of the factors' table; ``words`` are
    addresses: of tensors, in a column of their table; of factors in a tensor ``[s]`` float32, of which a column says where
    each begins; or of nothing.
    """
    if not (possible() and on_host(factors.device)):
        return NotImplemented
    calls: _Calls = factors.once((name, *arguments[-1:]), lambda: _Calls(factors, name, arguments))
    for slot, (what, column) in words.items():
        if isinstance(what, TensorList):
            if calls.made_of.get(slot) is not what.table:
                calls.made_of[slot] = what.table
                calls.table.put(slot, what.table[:, column])
        else:
            at = 0 if what is None else native.address("factors", what, torch.float32, what.numel())
            if calls.made_of.get(slot) != at:
                calls.made_of[slot] = at
                calls.table.put(slot, 0 if what is None else factors.table[:, column] * 4 + at)
    calls.table.run(0)
    return None
