"""ACP-SGD: alternate compressed power-SGD (Zhang et al., ICDCS 2023).

Letters: M is m x l: m the first dimension, l all others flattened; r the rank; P is m x r, Q is l x r.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from grace.collectives import Exchange
from grace.communicators import Allreduce
from grace.contract.knobs import Count, Positive
from grace.contract.loan import succeed, succeed_all
from grace.contract.method import Exchanged
from grace.contract.peer import Peer
from grace.flags.finite import ask_host, ask_host_of_all
from grace.kernels import orthonormalize
from grace.methods.common.matrices import DENSE, LowRank, Projection
from grace.methods.common.projection_bucket import ProjectionBucket, open_projections
from grace.methods.common.turned_bucket import TurnedBucket, open_turned
from grace.registry import register


class ACPState(NamedTuple):
    """p, q: the factors, the same on all ranks. turn: 0 if P is next, 1 if Q is."""

    p: Tensor
    q: Tensor
    turn: int


@register("acpsgd", memory="residual", family="low rank", cases=["rank=2,min_rate=0.1"])
@dataclass(frozen=True, slots=True)
class ACPSGD(LowRank["ACPState | None"]):
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

    def exchange(self, x: Tensor, state: ACPState | None, peer: Peer) -> Exchange[Exchanged[ACPState | None]]:
        if state is None:
            return (yield from DENSE.exchange(x, None, peer))
        m, l, _ = self._sizes(x)
        old, new = (state.p, state.q) if state.turn else (state.q, state.p)
        basis = orthonormalize(old.mT.contiguous())  # [r, m] or [r, l]
        root = math.sqrt(len(old))  # so that a product neither overflows nor vanishes
        projection = Projection(m, l, basis * (1 / root), basis * root, transposed=bool(state.turn))
        out = yield from Allreduce(projection).exchange(x, None, peer)
        if not ask_host(out.finite):  # which factor the next step sends depends on it
            return Exchanged.poisoned(x, state)
        factor = succeed(True, projection.factor, new, peer.lent)
        after = ACPState(state.p, factor, 0) if state.turn else ACPState(factor, state.q, 1)
        return Exchanged(out.mean, out.rest, after)

    def batches(self, like: Tensor) -> bool:
        return type(self) is ACPSGD and self._batches(like)

    def exchange_all(
        self, xs: Sequence[Tensor], states: Sequence[ACPState | None], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[ACPState | None]]]:
        """All matrices and all that goes uncompressed: one pass of each kernel, one all-reduce."""
        sides = [None if state is None else self._sizes(x) for x, state in zip(xs, states, strict=True)]
        held = [state for state in states if state is not None]
        turned = [bool(state.turn) for state in held]
        bases = [state.p if state.turn else state.q for state in held]
        bucket: ProjectionBucket | TurnedBucket | None = open_projections(self, sides, turned, xs, bases, peers)
        bucket = bucket or open_turned(self, sides, turned, xs, bases, peers)
        if bucket is None:
            return (yield from LowRank.exchange_all(self, xs, states, peers))
        yield from bucket.sum_factors()
        outs, factors = bucket.restore()
        # which factors the next step sends depends on it
        fine = ask_host_of_all([out.finite for out, state in zip(outs, states, strict=True) if state is not None])
        olds = [state.q if state.turn else state.p for state in held]
        news, results = zip(fine, succeed_all(fine, factors, olds, peers[0].lent), strict=True), []
        for state, out in zip(states, outs, strict=True):
            after = state
            if state is not None:
                done, new = next(news)
                if done:
                    after = ACPState(state.p, new, 0) if state.turn else ACPState(new, state.q, 1)
            results.append(Exchanged(out.mean, out.rest, after, out.finite))
        return results

    def _sides(self, like: Tensor, step: int) -> tuple[int, ...] | None:
        m, l, _ = self._sizes(like)
        return (l if step % 2 else m,)
