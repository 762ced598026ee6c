"""SIDCo: statistical-based gradient compression (Abdelmoniem et al., MLSys 2021).

Letters: a = |x|; eta the threshold; M stages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from grace.collectives import Exchange, Traffic
from grace.communicators import Allgather
from grace.contract.facts import Facts
from grace.contract.knobs import Count, Positive, Range, Share
from grace.contract.method import Exchanged, Method
from grace.contract.peer import Peer
from grace.flags.finite import ask_host
from grace.kernels.index_lists.codes import IndexCode
from grace.kernels.sparse import payloads
from grace.methods.common.counts import contraction, count_kept
from grace.methods.common.tails import Search, most_stages, threshold
from grace.methods.threshold import Threshold
from grace.registry import register


@register("sidco", memory="residual", family="sparsification", cases=["ratio=0.2"])
@dataclass(frozen=True, slots=True)
class SIDCo(Method[Search]):
    """SIDCo: a threshold from the statistics of the gradient, refined on what exceeds it, instead of a selection.

    ``C(x)_i = x_i if |x_i| > eta, else 0``, with eta such that about ``ratio n`` numbers exceed it: the quantile of a
    distribution fitted to |x|, then M - 1 times more to what exceeds the last eta.

    Args:
        ratio: share of the elements that should be kept, in (0, 1].
        dist: what is fitted: exp (exponential), gpareto (generalized Pareto), or gamma (then gpareto).
        first_ratio: what the first of several stages keeps, in (0, 1).
        eps: how far kept/wanted may be from 1 before M changes, > 0.
        period: steps over which that is averaged, >= 1.
        index: how indices travel: raw, bitmap, elias-fano, delta, rice, or auto: the smallest of the first three.
        values: how values travel: float32, or bfloat16, rounded to nearest.
    Wire:
        as threshold: a count (int32), nnz values, nnz indices; data-dependent. One round, and a small one for the sizes.
    Bias:
        biased; delta >= nnz/n, and at least the largest number is kept, so delta >= 1/n. Exact for equal magnitudes.
    Differs from the paper:
        more stages keep fewer numbers of heavy-tailed gradients and more of light-tailed ones, so a rule with a fixed
        sign fails for one of the two. Here M keeps its direction while that brings kept/wanted nearer to 1, and turns
        back otherwise. M starts at 1 and differs between workers; it is saved with the state.
    Example:
        >>> method("sidco:ratio=0.001,dist=gpareto,memory=none")
        SIDCo(ratio=0.001, dist='gpareto', first_ratio=0.25, eps=0.2, period=5, index='auto', values='float32')

    Reference:
        Abdelmoniem, Elzanaty, Alouini and Canini, "An Efficient Statistical-based Gradient Compression Technique for
        Distributed Training Systems", MLSys 2021, arXiv 2101.10761, algorithm 1.
    """

    varies: ClassVar[bool] = True
    ratio: Share = 0.01
    dist: Literal["exp", "gpareto", "gamma"] = "exp"
    first_ratio: Annotated[float, Range(above=0, below=1)] = 0.25
    eps: Positive = 0.2
    period: Count = 5
    index: IndexCode = "auto"
    values: payloads.ValueType = "float32"

    def with_memory(self) -> SIDCo:
        return self

    def init(self, like: Tensor) -> Search:
        return Search()

    def exchange(self, x: Tensor, state: Search, peer: Peer) -> Exchange[Exchanged[Search]]:
        eta, surplus = self._threshold(x, state)
        inner = Threshold(eta, index=self.index, values=self.values)
        out = yield from Allgather(inner).exchange(x, None, peer)
        return Exchanged(out.mean, out.rest, self._next(state, surplus) if ask_host(out.finite) else state, out.finite)

    def _threshold(self, x: Tensor, state: Search) -> tuple[float, float | None]:
        """The threshold, and kept/wanted; None if x is zero or not finite."""
        a = x.reshape(-1).float().abs()
        top = a.max() if a.numel() else torch.tensor(0.0)
        if not 0 < float(top) < math.inf:
            return 1.0, None
        eta = threshold(a, self.ratio, state.stages, self.dist, self.first_ratio)
        eta = min(eta, float(torch.nextafter(top, torch.zeros_like(top))))  # so that at least the largest is kept
        return max(eta, _LEAST), int((a > eta).sum()) / count_kept(self.ratio, a.numel())

    def _next(self, state: Search, surplus: float | None) -> Search:
        """The state after a step; unchanged where nothing could be counted."""
        most = most_stages(self.ratio, self.first_ratio)
        return state if surplus is None else state.follow(surplus, most, self.eps, self.period)

    def facts(self, like: Tensor) -> Facts:
        return Facts(contraction=contraction(1 / max(1, like.numel()), self.values))

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        return Traffic() if like.numel() == 0 else None


_LEAST = 5e-324  # below all of float32
