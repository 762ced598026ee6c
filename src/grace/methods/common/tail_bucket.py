"""The tensors of a bucket whose thresholds follow from what exceeds them, on an accelerator, by few launches or questions:
sidco.

Letters: T tensors; eta their thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from grace.kernels import TensorList, tail_sums_many, tops_many
from grace.methods.common.tails import (
    ALL,
    LEAST,
    GammaFit,
    gamma_quantiles,
    log_moments,
    moments,
    pareto_quantile_of,
)


def exponential_thresholds(many: TensorList, shares: Sequence[Sequence[float]]) -> tuple[Tensor, Tensor]:
    """The thresholds that :func:`grace.methods.common.tails.find_threshold` finds of T tensors plus their memories, each in
    as many stages as it has ``shares``: eta, float64 ``[T]``; and ``[T]`` bool, whether there is one.
    """
    T, stages = len(many), max(map(len, shares))
    padded = [[*(math.log(share) for share in row), *[0.0] * (stages - len(row))] for row in shares]
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


def fitted_thresholds(
    many: TensorList, shares: Sequence[Sequence[float]], dist: Literal["gpareto", "gamma"]
) -> tuple[Tensor, Tensor]:
    """As :func:`exponential_thresholds`, for generalized Pareto distributions, or gamma distributions first. The host, which
    computes powers, asks for the moments of all tensors in one question for each stage, and before all but the first in
    another for how many numbers are left; so it does before the first where gamma distributions are fitted to tensors with
    zeros.
    """
    rows = [_magnitudes(many, t) for t in range(len(many))]
    below, eta = (_fit_pareto if dist == "gpareto" else _fit_gamma)(rows, [each[0] for each in shares])
    live = list(eta)
    for stage in range(1, max(map(len, shares))):
        live = [t for t in live if stage < len(shares[t])]
        counts = _ask([((rows[t] > eta[t]).sum(),) for t in live])
        some = [(t, int(count)) for t, (count,) in zip(live, counts, strict=True) if count]
        live = [t for t, _ in some]
        told_of = _ask([moments(_above(rows[t], eta[t], count).double() - eta[t]) for t, count in some])
        for t, (mu, variance) in zip(live, told_of, strict=True):
            eta[t] += pareto_quantile_of(mu, variance, shares[t][stage])
    thresholds = [max(min(eta[t], below[t]), LEAST) if t in eta else 1.0 for t in range(len(rows))]
    both = torch.tensor([thresholds, [float(t in eta) for t in range(len(rows))]], dtype=torch.float64, device="cpu")
    limits, usable = both.to(many.device, non_blocking=True)
    return limits, usable != 0


def _fit_pareto(rows: Sequence[Tensor], shares: Sequence[float]) -> tuple[list[float], dict[int, float]]:
    """Upper limits of the thresholds of ``rows [n]``, and the thresholds of the first stage, where there is any."""
    told = _ask([(*_top(row), *moments(row)) for row in rows])
    eta = {
        t: pareto_quantile_of(mu, variance, shares[t])
        for t, (top, _, mu, variance) in enumerate(told)
        if 0 < top < math.inf
    }
    return [limit for _, limit, _, _ in told], eta


def _fit_gamma(rows: Sequence[Tensor], shares: Sequence[float]) -> tuple[list[float], dict[int, float]]:
    """As :func:`_fit_pareto`. Moments are asked for together with how many numbers are not zero; and again of those, if they
    are not all.
    """
    told = _ask([(*_top(row), (row > 0).sum().double(), *log_moments(row)) for row in rows])
    counts = {t: int(count) for t, (top, _, count, _, _) in enumerate(told) if 0 < top < math.inf}
    means = {t: told[t][3:] for t in counts}
    some = [t for t, count in counts.items() if count < len(rows[t])]
    again = _ask([log_moments(_above(rows[t], 0.0, counts[t])) for t in some])
    means.update(zip(some, again, strict=True))
    fits = [GammaFit.of(means[t][0], means[t][1], shares[t], len(rows[t]), count) for t, count in counts.items()]
    return [each[1] for each in told], dict(zip(counts, gamma_quantiles(fits), strict=True))


def _top(a: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of ``a [n]``, float32, and the next number below, float64 of no dimension."""
    top = a.max()
    return top.double(), torch.nextafter(top, torch.zeros_like(top)).double()


def _magnitudes(many: TensorList, t: int) -> Tensor:
    """Numbers of tensor t plus its memory, float32 ``[n]``."""
    x = many.xs[t]
    return (x.float() if many.memories is None else x + many.memories[t]).abs().view(-1)


def _above(a: Tensor, eta: float, count: int) -> Tensor:
    """``a[a > eta]`` of ``a [n]``, where the host knows how many there are: nothing waits."""
    above = a > eta
    place = torch.where(above, above.cumsum(0) - 1, count)
    return a.new_empty(count + 1).scatter_(0, place, a)[:count]


def _ask(numbers: Sequence[Sequence[Tensor]]) -> list[list[float]]:
    """Copies numbers of no dimension, of each of several tensors, to the host."""
    return torch.stack([torch.stack(tuple(each)) for each in numbers]).tolist() if numbers else []
