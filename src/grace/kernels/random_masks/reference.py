"""The specification of taking and adding subsets, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grace.kernels.places import add_at_
from grace.kernels.random_masks import Drawing, check_wires
from grace.kernels.tensor_list import TensorList

if TYPE_CHECKING:
    from grace.random import Stream


def take_subset(rows: Tensor, k: int, rng: Stream, left: float | None = None) -> Tensor:
    index = rng.subset(rows.shape[1], k, rows.device)
    taken = rows[:, index]
    if left is not None:
        rows[:, index] = taken * left
    return taken


def add_subset(received: Sequence[Tensor], out: Tensor, weight: float, rng: Stream) -> None:
    (b, n), k = out.shape, check_wires(received, out)
    index = rng.subset(n, k, out.device).expand(b, k)
    for wire in received:
        add_at_(out, 1, index, wire * weight)


def take_subsets_many(message: Tensor, many: TensorList, drawing: Drawing, step: int, left: Sequence[float]) -> Tensor:
    flags = []
    memories = None if many.memories is None else _rows(many.memories)
    rests = None if many.rests is None else _rows(many.rests)
    for t, x in enumerate(_rows(many.xs)):
        p = x.float() if memories is None else x.float() + memories[t]
        flags.append(p.isfinite().all())
        places, sent = _places(many, drawing, step, t), _part(message, many, drawing, t)
        taken = p[places]
        sent.zero_()[: len(places)] = taken.masked_fill(~flags[-1], 0.0)
        if rests is not None:
            rests[t].copy_(p)
            rests[t][places] = taken * left[t]
    return many.all_of(torch.stack(flags))


def put_subsets_many(
    message: Tensor, many: TensorList, drawing: Drawing, step: int, weight: Sequence[float], into: TensorList
) -> Tensor:
    _sum(message[None], many, drawing, step, weight, into)
    return into.all_of(_all_finite(_rows(into.xs)))


def sum_subsets_many(rows: Tensor, many: TensorList, drawing: Drawing, step: int, weight: Sequence[float]) -> Tensor:
    return many.all_of(_all_finite(_sum(rows, many, drawing, step, weight, many)))


def _sum(
    messages: Tensor, many: TensorList, drawing: Drawing, step: int, weight: Sequence[float], into: TensorList
) -> list[Tensor]:
    """Sets the rows of ``into``: what has been added, of all messages ``[W, s]``, for each row."""
    sent = []
    for t, x in enumerate(_rows(into.xs)):
        places, total = _places(many, drawing, step, t), torch.zeros_like(x)
        sent.append(torch.stack([_part(message, many, drawing, t)[: len(places)] for message in messages]))
        for part in sent[-1]:
            add_at_(total, 0, places, part * weight[t])
        x.copy_(total)
    return sent


def _all_finite(rows: Sequence[Tensor]) -> Tensor:
    """bool: which of them are."""
    return torch.stack([row.isfinite().all() for row in rows])


def _rows(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The rows of all tensors ``[b, n_t]``."""
    return [row for x in tensors for row in x]


def _part(message: Tensor, many: TensorList, drawing: Drawing, t: int) -> Tensor:
    """The part of ``message [s]`` that belongs to row t."""
    at = many.places[t] // 4
    return message[at : at + drawing.width(t, many.sizes[t])]


def _places(many: TensorList, drawing: Drawing, step: int, t: int) -> Tensor:
    """``[m]``: the places in row t of what it sends, in the order in which it does."""
    n = many.sizes[t]
    chosen = drawing.choose(t, n, replace(many.streams[t // many.rows], step=step), many.device)
    if drawing.block is None:
        return chosen
    places = (
        chosen.sort().values[:, None] * drawing.block
        + torch.arange(drawing.block, device=many.device, dtype=torch.int64)
    ).view(-1)
    return places[places < n]
