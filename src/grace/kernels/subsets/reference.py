"""The specification of taking and adding subsets, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grace.kernels.many import Many
from grace.kernels.places import add_at_
from grace.kernels.subsets import Drawing, check_wires

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


def take_subsets_many(message: Tensor, many: Many, drawing: Drawing, step: int, left: Sequence[float]) -> Tensor:
    flags = []
    for t, x in enumerate(many.xs):
        p = x[0].float() if many.memories is None else x[0].float() + many.memories[t][0]
        flags.append(p.isfinite().all())
        places, sent = _places(many, drawing, step, t), _part(message, many, drawing, t)
        sent.zero_()[: len(places)] = p[places]
        if many.rests is not None:
            many.rests[t].copy_(p)
            many.rests[t][0, places] = p[places] * left[t]
    return torch.stack(flags)


def put_subsets_many(
    message: Tensor, many: Many, drawing: Drawing, step: int, weight: Sequence[float], into: Many
) -> Tensor:
    flags = []
    for t, x in enumerate(into.xs):
        places, sent = _places(many, drawing, step, t), _part(message, many, drawing, t)
        said = add_at_(torch.zeros_like(x[0]), 0, places, sent[: len(places)] * weight[t])
        x[0].copy_(said)
        flags.append(said.isfinite().all())
    return torch.stack(flags)


def _part(message: Tensor, many: Many, drawing: Drawing, t: int) -> Tensor:
    """What tensor t sends, of ``message [s]``."""
    at = many.places[t] // 4
    return message[at : at + drawing.width(t, many.sizes[t])]


def _places(many: Many, drawing: Drawing, step: int, t: int) -> Tensor:
    """``[m]``: the places in tensor t of what it sends, in the order in which it does."""
    n = many.sizes[t]
    chosen = drawing.choose(t, n, replace(many.streams[t], step=step), many.device)
    if drawing.block is None:
        return chosen
    places = (chosen.sort().values[:, None] * drawing.block + torch.arange(drawing.block, device=many.device)).view(-1)
    return places[places < n]
