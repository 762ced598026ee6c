"""ACP-SGD: alternate compressed power-SGD (Zhang et al., ICDCS 2023).

Letters: M is m x l: m the first dimension, l all others flattened; r the rank; P is m x r, Q is l x r.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from grace.collectives import Exchange
from grace.contract.knobs import Count, Positive
from grace.contract.loan import succeed_all
from grace.contract.method import Exchanged
from grace.contract.peer import Peers
from grace.contract.workspace import Workspace
from grace.flags.finite import ask_host_of_all
from grace.methods.common.matrices import Factored, Sides, as_rows
from grace.methods.common.projection_bucket import ProjectionBucket, find_projection_plan
from grace.registry import register


class ACPState(NamedTuple):
    """p, q: the factors, the same on all ranks. turn: 0 if P is next, 1 if Q is."""

    p: Tensor
    q: Tensor
    turn: int


@register("acpsgd", memory="residual", family="low rank", cases=["rank=2,min_rate=0.1"])
@dataclass(frozen=True, slots=True)
class ACPSGD(Factored["ACPState | None"]):
    """ACP-SGD: PowerSGD, with one of its two factors in each step, so that one round is enough.

    ``Q = orth(Q);  P = mean of M_w Q;  C = P Q^T`` in one step, ``P = orth(P);  Q = mean of M_w^T P;  C = P Q^T`` in the next

    Args:
        rank: r, >= 1; at most min(m, l) is used.
        min_rate: matrices with at most min_rate r (m + l) elements go uncompressed, > 0.
    Wire:
        P and Q in turn (float32): 32 r m and 32 r l bits, one round, summed by the network. Tensors of fewer than two
        dimensions go uncompressed.
    Bias:
        biased: an orthogonal projection of the mean, so that its error never exceeds the mean. Exact from the second
        step on where the mean keeps to one space of dimension r or less. Made to be used with a memory, under which a
        direction waits up to l/r steps for its turn: where the curvature is at most L and no direction stands out, steps
        above 2 r / (L l) diverge. PowerSGD's basis follows what is owed, and bears larger steps.
    Differs from the paper:
        orthogonalization by QR. The turn counts the tensor's finite steps only; traffic is declared as if every step
        were finite.
    Example:
        >>> method("acpsgd:rank=2")
        ErrorFeedback(method=ACPSGD(rank=2, min_rate=2.0), beta=1.0, gamma=1.0)

    Reference:
        Zhang, Zhang, Shi, Chu and Li, "Evaluation and Optimization of Gradient Compression for Distributed Deep
        Learning", ICDCS 2023, arXiv 2306.08881.
    """

    rank: Count = 4
    min_rate: Positive = 2.0

    def init(self, like: Tensor) -> ACPState | None:
        """P ``[m, r]`` and Q ``[l, r]``, the same on all ranks; None for tensors that go uncompressed."""
        if not self._compresses(like):
            return None
        p, q = self._draw_factors(like, "acpsgd")
        return ACPState(p, q, 0)

    def _average(
        self, sides: Sequence[Sides | None], xs: Sequence[Tensor], states: Sequence[ACPState | None], peers: Peers
    ) -> Exchange[list[Exchanged[ACPState | None]]]:
        """All matrices: the orthonormal basis of the factor that the step before sent, and the mean of the other one."""
        held = {i: state for i, state in enumerate(states) if state is not None and sides[i] is not None}
        turned = [bool(state.turn) for state in held.values()]
        olds = [as_rows(state.p if state.turn else state.q) for state in held.values()]
        lasts = [state.q if state.turn else state.p for state in held.values()]
        workspace = peers.like.lent.workspace or Workspace()
        plan = find_projection_plan(self, sides, turned, xs, peers, workspace)
        bucket = ProjectionBucket(plan, xs, olds, peers, workspace)
        yield from bucket.sum_factors()
        outs = bucket.restore()
        fine = ask_host_of_all([outs[i].finite for i in held])  # which factors the next step sends depends on it
        news = succeed_all(fine, bucket.received(), lasts, peers.like.lent)
        for out, state in zip(outs, states, strict=True):
            out.state = state
        for (i, state), done, new in zip(held.items(), fine, news, strict=True):
            if done:
                outs[i].state = ACPState(state.p, new, 0) if state.turn else ACPState(new, state.q, 1)
        return outs

    def _sides(self, like: Tensor, step: int) -> tuple[int, ...] | None:
        m, l, _ = self._sizes(like)
        return (l if step % 2 else m,)
