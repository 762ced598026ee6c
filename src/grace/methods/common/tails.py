"""Thresholds from statistics: what a given share of the magnitudes exceeds, if a distribution fits them (sidco).

Letters: ``a [n]`` magnitudes, not all zero; eta a threshold; mu the mean of what exceeds it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Search(NamedTuple):
    """How many stages, and how well they have done.

    stages: M. direction: where M went last, +1 or -1. error: |log of kept/wanted| before it went.
    steps, surplus: since then, and the sum of kept/wanted over them.
    """

    stages: int = 1
    direction: int = 1
    error: float = math.inf
    steps: int = 0
    surplus: float = 0.0

    def follow(self, surplus: float, most: int, eps: float, period: int) -> Search:
        """After a step that kept ``surplus`` of what was wanted: at the end of a period outside of 1 +- eps, M moves, within
        1 to ``most``.
        """
        steps, total = self.steps + 1, self.surplus + surplus
        if steps < period:
            return self._replace(steps=steps, surplus=total)
        average = total / steps
        if abs(average - 1) <= eps:
            return self._replace(steps=0, surplus=0.0)
        error = abs(math.log(average))
        direction = self.direction if error <= self.error else -self.direction
        if not 1 <= self.stages + direction <= most:
            direction = -direction
        return Search(min(max(self.stages + direction, 1), most), direction, error)


def threshold(a: Tensor, ratio: float, stages: int, dist: str, first_ratio: float) -> float:
    """The threshold that about ``ratio`` of the magnitudes ``a [n]`` exceed, estimated in ``stages`` stages."""
    stages = min(stages, most_stages(ratio, first_ratio))
    share = ratio if stages == 1 else first_ratio
    eta = QUANTILES[dist](a, share)
    later = QUANTILES["gpareto" if dist == "gamma" else dist]
    for _ in range(stages - 1):
        above = a[a > eta]
        if not above.numel():
            break
        eta += later(above.double() - eta, (ratio / first_ratio) ** (1 / (stages - 1)))
    return eta


def most_stages(ratio: float, first_ratio: float) -> int:
    """``ceil(log ratio / log 1/2)``; 1 where the first stage already goes beyond the ratio."""
    return 1 if ratio >= first_ratio else max(1, math.ceil(math.log(ratio) / math.log(0.5)))


def exponential_quantile(a: Tensor, share: float) -> float:
    """What ``share`` of an exponential distribution with a's mean exceeds; a is ``[n]``."""
    return -float(a.mean(dtype=torch.float64)) * math.log(share)


def pareto_quantile(a: Tensor, share: float) -> float:
    """What ``share`` of a generalized Pareto distribution with a's mean and variance exceeds; a is ``[n]``."""
    a = a.double()
    mu, variance = float(a.mean()), float(a.var(correction=0))
    if variance <= 1e-12 * mu * mu:  # all equal
        return exponential_quantile(a, share)
    kappa = (1 - mu * mu / variance) / 2
    beta = mu * (mu * mu / variance + 1) / 2
    log = -math.log(share)
    return beta * (math.expm1(kappa * log) / kappa if abs(kappa) > 1e-9 else log)


def gamma_quantile(a: Tensor, share: float) -> float:
    """What ``share`` of the numbers exceed if those that are not zero follow a gamma distribution; a is ``[n]``."""
    share *= a.numel()
    a = a[a > 0].double()
    share /= a.numel()
    mu = float(a.mean())
    s = math.log(mu) - float(a.log().mean())
    if s <= 1e-12 or share >= 1:  # all equal, or all of them
        return exponential_quantile(a, min(share, 1.0))
    shape = (3 - s + math.sqrt((s - 3) ** 2 + 24 * s)) / (12 * s)
    return mu / shape * inverse_gamma_tail(shape, share)


def inverse_gamma_tail(shape: float, share: float) -> float:
    """The y with ``Q(shape, y) = share``, by bisection; Q is the regularized upper incomplete gamma function."""
    order = torch.tensor(shape, dtype=torch.float64)

    def tail(y: float) -> float:
        return float(torch.special.gammaincc(order, torch.tensor(y, dtype=torch.float64)))

    low, high = 0.0, max(1.0, shape)
    while tail(high) > share:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) > share else (low, middle)
    return high


QUANTILES = {"exp": exponential_quantile, "gpareto": pareto_quantile, "gamma": gamma_quantile}
