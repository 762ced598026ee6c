"""Thresholds from statistics: what a given share of the magnitudes exceeds, if a distribution fits them (sidco).

Letters: ``a [n]`` magnitudes, not all zero; eta a threshold; mu the mean of what exceeds it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grace.kernels import tail_sum

ALL = -1.0  # what all magnitudes exceed
LEAST = 5e-324  # below all of float32


class Search(NamedTuple):
    """Search for the number of stages, with the results of those that were tried.

    stages: M. direction: where M went last, +1 or -1. steps, surplus: since M changed or a period ended, and the sum of
    kept/wanted over them. low, high: the least and the most stages that this search has tried, 0 before it begins; it
    has tried all between. best, error: of those the stages with the least |log of kept/wanted|, and that.
    """

    stages: int = 1
    direction: int = 1
    steps: int = 0
    surplus: float = 0.0
    low: int = 0
    high: int = 0
    best: int = 0
    error: float = math.inf

    def follow(self, surplus: float, most: int, eps: float, period: int) -> Search:
        """After a step that kept ``surplus`` of what was wanted. At the end of a period within 1 +- eps the search ends, and M
        stays. Otherwise M becomes the next number from 1 to ``most`` that was not tried: in the direction of the last one if
        that brought kept/wanted nearer to 1 than all before, else on the other side. Where all were tried it is the best, and
        stays until that does worse by more than eps; then a new search begins.
        """
        steps, total = self.steps + 1, self.surplus + surplus
        if steps < period:
            return self._replace(steps=steps, surplus=total)
        average = total / steps
        if abs(average - 1) <= eps:
            return Search(self.stages, self.direction)
        error = abs(math.log(average))
        tried = self
        if not self.high or (self._has_tried(most) and error > self.error + math.log1p(eps)):
            tried = self._replace(low=self.stages, high=self.stages, best=0, error=math.inf)
        if not self._has_tried(most) or tried is not self:
            tried = tried._note(error)
        return tried._move(most)._replace(steps=0, surplus=0.0)

    def _has_tried(self, most: int) -> bool:
        """True if no number of stages is left to try."""
        return 0 < self.low <= 1 and self.high >= most

    def _note(self, error: float) -> Search:
        """After these stages were tried."""
        low, high = min(self.low, self.stages), max(self.high, self.stages)
        if error < self.error:
            return self._replace(low=low, high=high, best=self.stages, error=error)
        return self._replace(low=low, high=high, direction=-self.direction)

    def _move(self, most: int) -> Search:
        """The next stages, or where all were tried the best."""
        down, up = self.low - 1, self.high + 1
        if self._has_tried(most):
            return self._replace(stages=min(self.best, most))
        direction = -1 if up > most or (self.direction < 0 and down >= 1) else 1
        return self._replace(stages=up if direction > 0 else down, direction=direction)


def find_threshold(a: Tensor, ratio: float, stages: int, dist: str, first_ratio: float) -> float | None:
    """As :func:`threshold`, such that at least the largest magnitude exceeds it; None if that is zero or not finite, or if
    there is none.
    """
    top = a.max() if a.numel() else torch.tensor(0.0, dtype=torch.float32, device="cpu")
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
    """The share that each of so many stages keeps of the numbers that the last one has left; no more than
    :func:`most_stages`.
    """
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


def pareto_quantile(a: Tensor, share: float) -> float:
    """The number that ``share`` of a generalized Pareto distribution with a's mean and variance exceeds; a is ``[n]``."""
    mean, variance = moments(a)
    return pareto_quantile_of(float(mean), float(variance), share)


def moments(a: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the variance of ``a [n]``, float64 of no dimension."""
    a = a.double()
    return a.mean(), a.var(correction=0)


def pareto_quantile_of(mu: float, variance: float, share: float) -> float:
    """The number that ``share`` of a generalized Pareto distribution with this mean and variance exceeds."""
    if variance <= 1e-12 * mu * mu:  # all equal
        return -mu * math.log(share)
    kappa = (1 - mu * mu / variance) / 2
    beta = mu * (mu * mu / variance + 1) / 2
    log = -math.log(share)
    return beta * (math.expm1(kappa * log) / kappa if abs(kappa) > 1e-9 else log)


def gamma_quantile(a: Tensor, share: float) -> float:
    """The number that ``share`` of all exceed if those that are not zero follow a gamma distribution; a is ``[n]``."""
    some = a[a > 0]
    mean, log_mean = log_moments(some)
    return gamma_quantiles([GammaFit.of(float(mean), float(log_mean), share, a.numel(), some.numel())])[0]


def log_moments(a: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the mean of the logarithms of ``a [n]``, float64 of no dimension."""
    a = a.double()
    return a.mean(), a.log().mean()


class GammaFit(NamedTuple):
    """A gamma distribution's mean, and the difference s between its logarithm and the mean of logarithms; and the share of
    its numbers that is to be exceeded, which may be more than all.
    """

    mean: float
    s: float
    share: float

    @classmethod
    def of(cls, mean: float, log_mean: float, share: float, n: int, count: int) -> GammaFit:
        """The fit to the ``count`` of n numbers that are not zero, whose moments are given; ``share`` is of all n."""
        return cls(mean, math.log(mean) - log_mean, share * n / count)

    @property
    def degenerate(self) -> bool:
        """True if all numbers are equal, or all of them are to exceed the quantile."""
        return self.s <= 1e-12 or self.share >= 1


def gamma_quantiles(fits: Sequence[GammaFit]) -> list[float]:
    """The number that the share of each of these exceeds."""
    shapes = {
        t: (3 - fit.s + math.sqrt((fit.s - 3) ** 2 + 24 * fit.s)) / (12 * fit.s)
        for t, fit in enumerate(fits)
        if not fit.degenerate
    }
    tails = inverse_gamma_tails(list(shapes.values()), [fits[t].share for t in shapes])
    quantiles = [-fit.mean * math.log(min(fit.share, 1.0)) for fit in fits]  # of exponential distributions
    for (t, shape), tail in zip(shapes.items(), tails, strict=True):
        quantiles[t] = fits[t].mean / shape * tail
    return quantiles


def inverse_gamma_tails(shapes: Sequence[float], shares: Sequence[float]) -> list[float]:
    """For each the y with ``Q(shape, y) = share``, by bisection; Q is the regularized upper incomplete gamma function."""
    orders, wanted = np.array(shapes, dtype=np.float64), np.array(shares, dtype=np.float64)
    order = torch.from_numpy(orders)
    out = np.empty_like(orders)

    def tails(y: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        torch.special.gammaincc(order, torch.from_numpy(y), out=torch.from_numpy(out))
        return out

    low, high = np.zeros_like(orders), np.maximum(1.0, orders)
    while (beyond := tails(high) > wanted).any():
        low, high = np.where(beyond, high, low), np.where(beyond, 2 * high, high)
    for _ in range(60):
        middle = (low + high) / 2
        beyond = tails(middle) > wanted
        low, high = np.where(beyond, middle, low), np.where(beyond, high, middle)
    answers: list[float] = high.tolist()
    return answers


QUANTILES = {"gpareto": pareto_quantile, "gamma": gamma_quantile}
