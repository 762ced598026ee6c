"""SIDCo: statistical-based gradient compression (Abdelmoniem et al., MLSys 2021).

Letters: a = |x|; eta the threshold; M stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from grace.collectives import Exchange, Traffic
from grace.communicators import Allgather
from grace.communicators.counted_many import NoPlan, exchange_chosen
from grace.communicators.many import prepare
from grace.compute import backends
from grace.contract.facts import Facts
from grace.contract.knobs import Count, Positive, Range, Share
from grace.contract.method import Exchanged, Method
from grace.contract.peer import Peer, Peers
from grace.flags.finite import ask_host, ask_host_of_all, on_host
from grace.kernels import choose_reaching_many, tail_sums_many
from grace.kernels.index_codes.codes import IndexCode
from grace.kernels.sparse import payloads
from grace.methods.common.counts import contraction, count_kept
from grace.methods.common.tail_bucket import exponential_thresholds, fitted_thresholds
from grace.methods.common.tails import Search, find_threshold, most_stages, stage_shares
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
        more stages keep fewer numbers of heavy-tailed gradients and more of light-tailed ones, and not always steadily,
        so a rule with a fixed sign fails. Here a search tries one M after the other, each for a period, until kept/wanted
        is within eps of 1. It keeps its direction while that brings kept/wanted nearer to 1, and tries the other side
        otherwise. Where no M is good enough, it stays at the best one until that does worse by more than eps. M starts
        at 1 and differs between workers; it is saved with the state.
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

    @property
    def adds_memory(self) -> bool:
        return True

    def exchange(self, x: Tensor, state: Search, peer: Peer) -> Exchange[Exchanged[Search]]:
        memory, rest = peer.lent.memory, peer.lent.rest
        p = x if memory is None else torch.add(x, memory, out=rest)
        a = p.reshape(-1).float().abs()
        eta = find_threshold(a, self.ratio, state.stages, self.dist, self.first_ratio)
        surplus = None if eta is None else self._surplus(int((a > eta).sum()), x)
        out = yield from Allgather(self._inner(eta or 1.0)).exchange(x, None, peer)
        return Exchanged(out.mean, out.rest, self._next(state, surplus) if ask_host(out.finite) else state, out.finite)

    def batches(self, like: Tensor) -> bool:
        """True where kernels take many tensors, of any shapes: on an accelerator."""
        there = not on_host(like.device) and backends.runs_triton(like.device)
        return type(self) is SIDCo and there and self._inner(1.0).counted is not None

    def exchange_all(
        self, xs: Sequence[Tensor], states: Sequence[Search], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[Search]]]:
        """Thresholds of tensors of any shapes are found on the device, or by questions for all of them. The host asks for
        sizes and counts, and at the end for what was finite.
        """
        inner, workspace = self._inner(1.0), peers[0].lent.workspace if peers else None
        bucket, code = None, inner.counted
        if workspace is not None and self.batches(xs[0]):
            whose = Peers.of(peers)
            bucket = prepare(self, inner, lambda peer: peer.private(inner.id), xs, whose, workspace, NoPlan.of)
        if bucket is None or code is None:
            return (yield from Method.exchange_all(self, xs, states, peers))
        shares = [stage_shares(self.ratio, state.stages, self.first_ratio) for state in states]
        many = bucket.many
        if self.dist == "exp":
            eta, usable = exponential_thresholds(many, shares)
        else:
            eta, usable = fitted_thresholds(many, shares, self.dist)
        counts = tail_sums_many(eta, many)[0]
        chosen = choose_reaching_many(eta, many, code, strict=True)
        outs, answers = yield from exchange_chosen(bucket, code, chosen, xs, whose, [counts, usable])
        finite = ask_host_of_all([out.finite for out in outs])
        for x, out, state, fine, count, there in zip(xs, outs, states, finite, *answers, strict=True):
            out.state = self._next(state, self._surplus(count, x) if there else None) if fine else state
        return outs

    def _inner(self, eta: float) -> Threshold:
        return Threshold(eta, index=self.index, values=self.values)

    def _surplus(self, count: int, x: Tensor) -> float:
        """Kept/wanted of x, of any shape."""
        return count / count_kept(self.ratio, x.numel())

    def _next(self, state: Search, surplus: float | None) -> Search:
        """The state after a step that kept ``surplus`` of what was wanted; unchanged where nothing could be counted."""
        most = most_stages(self.ratio, self.first_ratio)
        return state if surplus is None else state.follow(surplus, most, self.eps, self.period)

    def facts(self, like: Tensor) -> Facts:
        return Facts(contraction=contraction(1 / max(1, like.numel()), self.values))

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        return Traffic() if like.numel() == 0 else None
