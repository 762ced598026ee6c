"""The tensors of a bucket whose thresholds follow from what exceeds them, on an accelerator, by few launches: sidco.

Letters: T tensors; eta their thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from grace.kernels import Many, tail_sums_many, tops_many
from grace.methods.common.tails import ALL, LEAST


def exponential_thresholds(many: Many, shares: Sequence[Sequence[float]]) -> tuple[Tensor, Tensor]:
    """The thresholds that :func:`grace.methods.common.tails.find_threshold` finds of T tensors plus their memories, each in
    as many stages as it has ``shares``: eta, float64 ``[T]``; and ``[T]`` bool, whether there is one.
    """
    T, stages = len(many), max(map(len, shares))
    padded = [[*(math.log(share) for share in one), *[0.0] * (stages - len(one))] for one in shares]
    logs = many.numbers(("logs", *map(tuple, shares)), lambda: sum(zip(*padded, strict=True), ()), torch.float64)
    eta = torch.zeros(T, dtype=torch.float64, device=many.device)
    start = many.numbers(ALL, lambda: [ALL] * T, torch.float64)
    for log in logs.view(stages, T):
        count, total = tail_sums_many(start, many)
        start = eta = torch.where(count > 0, eta + -(total / count - eta) * log, eta)
    top = tops_many(eta, many)
    usable = (top > 0) & (top < math.inf)
    eta = torch.minimum(eta, torch.nextafter(top, torch.zeros_like(top)).double()).clamp_min(LEAST)
    return torch.where(usable, eta, 1.0), usable
