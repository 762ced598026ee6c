"""Thresholds from statistics: what a given share of the magnitudes exceeds, if a distribution fits them (sidco).

Letters: ``a [n]`` magnitudes, not all zero; eta a threshold; mu the mean of what exceeds it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from grace.kernels import tail_sum

ALL = -1.0  # what all magnitudes exceed
LEAST = 5e-324  # below all of float32


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


def find_threshold(a: Tensor, ratio: float, stages: int, dist: str, first_ratio: float) -> float | None:
    """As :func:`threshold`, such that at least the largest magnitude exceeds it; None if that is zero or not finite, or if
    there is none.
    """
    top = a.max() if a.numel() else torch.tensor(0.0)
    if not 0 < float(top) < math.inf:
        return None
    eta = threshold(a, ratio, stages, dist, first_ratio)
    return max(min(eta, float(torch.nextafter(top, torch.zeros_like(top)))), LEAST)


def threshold(a: Tensor, ratio: float, stages: int, dist: str, first_ratio: float) -> float:
    """The threshold that about ``ratio`` of the magnitudes ``a [n]`` exceed, estimated in ``stages`` stages."""
    shares = stage_shares(ratio, stages, first_ratio)
    if dist == "exp":
        return exponential_threshold(a, shares)
    eta = QUANTILES[dist](a, shares[0])
    for share in shares[1:]:
        above = a[a > eta]
        if not above.numel():
            break
        eta += pareto_quantile(above.double() - eta, share)
    return eta


def stage_shares(ratio: float, stages: int, first_ratio: float) -> list[float]:
    """What each of so many stages keeps of what the last one has left; no more than :func:`most_stages`."""
    stages = min(stages, most_stages(ratio, first_ratio))
    if stages == 1:
        return [ratio]
    return [first_ratio] + [(ratio / first_ratio) ** (1 / (stages - 1))] * (stages - 1)


def exponential_threshold(a: Tensor, shares: Sequence[float]) -> float:
    """As :func:`threshold` for exponential distributions, of sums that have one order everywhere."""
    eta, start = 0.0, ALL
    for share in shares:
        count, total = tail_sum(a, start)
        if not count:
            break
        start = eta = eta + -(total / count - eta) * math.log(share)
    return eta


def most_stages(ratio: float, first_ratio: float) -> int:
    """``ceil(log ratio / log 1/2)``; 1 where the first stage already goes beyond the ratio."""
    return 1 if ratio >= first_ratio else max(1, math.ceil(math.log(ratio) / math.log(0.5)))


def exponential_quantile(a: Tensor, share: float) -> float:
    """What ``share`` of an exponential distribution with a's mean exceeds; a is ``[n]``."""
    return -float(a.mean(dtype=torch.float64)) * math.log(share)


def pareto_quantile(a: Tensor, share: float) -> float:
    """What ``share`` of a generalized Pareto distribution with a's mean and variance exceeds; a is ``[n]``."""
    mean, variance = moments(a)
    return pareto_quantile_of(float(mean), float(variance), share)


def moments(a: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the variance of ``a [n]``, float64 of no dimension."""
    a = a.double()
    return a.mean(), a.var(correction=0)


def pareto_quantile_of(mu: float, variance: float, share: float) -> float:
    """What ``share`` of a generalized Pareto distribution with this mean and variance exceeds."""
    if variance <= 1e-12 * mu * mu:  # all equal
        return -mu * math.log(share)
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


QUANTILES = {"gpareto": pareto_quantile, "gamma": gamma_quantile}
