"""Operations on several tensors where the host reads flags at no cost: only what is not as it should be is written."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from grace.flags.finite import on_host
from grace.kernels.tensor_list import ALL_TOLD, TensorList


def poison_many(flags: Tensor, many: TensorList) -> Any:
    if not on_host(many.device):
        return NotImplemented
    _fill(flags, many, math.nan)
    return None


def agree_many(
    rows: Tensor,
    words: Tensor,
    good: int | Tensor,
    legal: Tensor,
    many: TensorList,
    *,
    kept: Tensor | None = None,
    clear: bool = False,
) -> Any:
    if not on_host(many.device):
        return NotImplemented
    headers = rows.view(torch.int32)[:, words]  # [W, T]
    right = headers == good
    if bool(right.all()) and all(x is None or x is many.all_set or bool(x.all()) for x in (legal, kept)):
        return many.once(ALL_TOLD, lambda: many.all_set.expand(3, -1)), headers
    finite, known = right.all(dim=0), (right | (headers == good + 1)).all(dim=0)
    fine = finite & legal if kept is None else finite & legal & kept
    _fill(fine, many, 0.0 if clear else math.nan)
    return torch.stack((fine, known, legal | ~finite)), headers


def settle_many(flags: Tensor, many: TensorList, *, drops: bool = True) -> Any:
    return None if on_host(many.device) and bool(flags.all()) else NotImplemented


def _fill(flags: Tensor, many: TensorList, value: float) -> None:
    if not bool(flags.all()):
        for t, fine in enumerate(flags.tolist()):
            if not fine:
                many.xs[t].fill_(value)
