"""PowerSGD: practical low-rank gradient compression (Vogels, Karimireddy and Jaggi, NeurIPS 2019).

Letters: M is m x l: m the first dimension, l all others flattened; r the rank; P is m x r, Q is l x r.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from grace.collectives import Exchange
from grace.contract.facts import Facts
from grace.contract.knobs import Count, Positive, Steps
from grace.contract.method import Exchanged
from grace.contract.peer import Peers
from grace.contract.workspace import Workspace
from grace.flags.capturing import has_begun
from grace.kernels.low_rank.grouped import (
    draw_many,
    fit_many,
    orthonormalize_many,
    project_columns_many,
    project_rows_many,
    split_low_rank_many,
    succeed_many,
    unit_rows_many,
)
from grace.kernels.multi_tensor import clear_many, finite_many
from grace.methods.common.factor_bucket import FactorBucket, find_factor_plan
from grace.methods.common.matrices import DENSE, Factored, Sides, as_rows
from grace.random import Stream
from grace.registry import register


@register(
    "powersgd",
    memory="residual",
    family="low rank",
    cases=["rank=2,min_rate=0.1", "rank=1,min_rate=0.1,warm_start=false", "start_step=1,min_rate=0.1", ""],
    recovers={"rank one": "rank=1,min_rate=0.1,memory=none"},
)
@dataclass(frozen=True, slots=True)
class PowerSGD(Factored["Tensor | None"]):
    """PowerSGD: the mean gradient, projected on a subspace of rank r that follows it by power iteration.

    ``P = orth(mean of M_w Q);  Q = mean of M_w^T P;  C(mean of M_w) = P Q^T``, and Q is where the next step starts

    Args:
        rank: r, >= 1; at most min(m, l) is used.
        warm_start: start from the last Q instead of a fresh random one.
        min_rate: matrices with at most min_rate r (m + l) elements go uncompressed, > 0.
        start_step: steps before this one go uncompressed, >= 0.
    Wire:
        P and Q, transposed (float32): 32 r (m + l) bits, two rounds, summed by the network. Tensors of fewer than two
        dimensions go uncompressed, in one round.
    Bias:
        biased: an orthogonal projection of the mean, so that its error never exceeds the mean. Exact where the mean has
        rank r or less; a zero matrix stays zero.
    Differs from the paper:
        the rest of worker w is M_w - P (M_w^T P)^T, as in the authors' later library, not M_w minus the global
        approximation: the sum over workers is the same, but single memories do not random-walk. Orthogonalization by
        Householder reflections instead of Gram-Schmidt; the columns of Q are normalized before they are used, which
        changes no result.
    Example:
        >>> method("powersgd:rank=2")
        ErrorFeedback(method=PowerSGD(rank=2, warm_start=True, min_rate=2.0, start_step=0), beta=1.0, gamma=1.0)

    Reference:
        Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
        Optimization", NeurIPS 2019, arXiv 1905.13727, algorithm 1.
    """

    rank: Count = 4
    warm_start: bool = True
    min_rate: Positive = 2.0
    start_step: Steps = 0

    def _begun(self, step: int) -> bool:
        return has_begun(step, self.start_step, f"start_step={self.start_step}")

    def init(self, like: Tensor) -> Tensor | None:
        """Q ``[l, r]``, the same on all ranks; None for tensors that go uncompressed."""
        if not self._compresses(like):
            return None
        m, l, r = self._sizes(like)
        return Stream(0, "powersgd", f"{m}x{l}", None, 0).normal(l * r, like.device).view(l, r)

    def _average(
        self, sides: Sequence[Sides | None], xs: Sequence[Tensor], states: Sequence[Tensor | None], peers: Peers
    ) -> Exchange[list[Exchanged[Tensor | None]]]:
        """Algorithm 1 for all matrices M: p and q are P and Q as rows, own is this worker's part of q. What goes uncompressed
        travels in the first round.
        """
        held = [as_rows(state) for state, of in zip(states, sides, strict=True) if of is not None and state is not None]
        workspace = peers.like.lent.workspace or Workspace()
        plan = find_factor_plan(self, sides, xs, peers, workspace, drawn_as=None if self.warm_start else "powersgd")
        b = FactorBucket(plan, xs, held, peers, workspace)
        if not plan.at:
            yield from b.sum_message()
            return b.results(None, states)
        M, factors, p, own, q = plan.matrices, plan.factors, b.left, b.own, b.right
        b.widen(plan.others, plan.at)
        if plan.drawn is not None:
            draw_many(own, plan.drawn, peers.like.step)
        unit_rows_many(q, plan.drawn or plan.states, factors)
        project_rows_many(b.message, M, factors, q)  # P = M Q
        yield from b.sum_message()
        finite = finite_many(plan.received.all_set, plan.received)
        clear_many(finite, plan.received)
        orthonormalize_many(p, b.message, factors)  # P = orth(P)
        project_columns_many(own, M, factors, p)  # Q = M^T P
        fit_many(own, factors, p, M, poison=True)
        yield from b.sum_right(finite)
        split_low_rank_many(p, M, factors, own if b.keep else None, q)  # M - P own^T is left, and the mean is P Q^T
        finite = b.settle(finite & fit_many(q, factors, p, M, poison=False), plan.others, plan.means)
        succeed_many(finite, plan.states, factors, q)
        return b.results(finite, states)

    def facts(self, like: Tensor) -> Facts:
        if not self._compresses(like):
            return DENSE.facts(like)
        m, l, r = self._sizes(like)
        return Facts(contraction=0.0, deterministic=self.warm_start, randomness="shared", payload=4 * r * (m + l))

    def _sides(self, like: Tensor, step: int) -> tuple[int, ...] | None:
        return Factored._sides(self, like, step) if self._begun(step) else None
