"""Inputs that some methods recover without error: functions from a rank to its tensor. Their mean has the same form.

A method says which of them it recovers, and with which knobs:
``@register(..., recovers={"sparse": "ratio=0.03,memory=none"})``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def sparse(rank: int) -> Tensor:
    """``[10, 6]``: every worker has the same two non-zeros, so that their mean is as sparse."""
    x = torch.zeros(10, 6, dtype=torch.float32, device="cpu")
    x[3, 1], x[7, 4] = -2.0 * (rank + 1), 1.0 * (rank + 1)
    return x


def whole(rank: int) -> Tensor:
    """``[10, 6]``: whole multiples of 8: a sixteenth of them has few bits."""
    return torch.arange(-30.0, 30.0, dtype=torch.float32, device="cpu").mul(8 + 8 * (rank % 2)).view(10, 6)


def one_hot(rank: int) -> Tensor:
    """``[60]``: one non-zero."""
    x = torch.zeros(60, dtype=torch.float32, device="cpu")
    x[11] = -3.0 * (rank + 1)
    return x


def one_magnitude(rank: int) -> Tensor:
    """``[60]``: signs of one magnitude."""
    return torch.where(torch.arange(60, dtype=torch.int64, device="cpu") % 3 == 0, 1.0, -1.0).mul(4.0 * (rank + 1))


def rank_one(rank: int) -> Tensor:
    """``[20, 15]``: a matrix of rank one, whose mean over workers is of rank one."""
    return torch.outer(
        torch.arange(1.0, 21.0, dtype=torch.float32, device="cpu"),
        torch.linspace(-1, 1, 15, dtype=torch.float32, device="cpu"),
    ).mul(rank + 1.0)


KINDS: dict[str, Callable[[int], Tensor]] = {
    "sparse": sparse,
    "whole": whole,
    "one hot": one_hot,
    "one magnitude": one_magnitude,
    "rank one": rank_one,
}
