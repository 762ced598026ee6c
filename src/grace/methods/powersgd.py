"""PowerSGD: practical low-rank gradient compression (Vogels, Karimireddy and Jaggi, NeurIPS 2019).

Letters: M is m x l: m the first dimension, l all others flattened; r the rank; P is m x r, Q is l x r.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from grace.collectives import AllReduce, Exchange
from grace.contract.facts import Facts
from grace.contract.knobs import Count, Positive, Steps
from grace.contract.loan import narrow, room_beside, succeed
from grace.contract.method import Exchanged
from grace.contract.peer import Peer
from grace.flags.capturing import has_begun
from grace.flags.finite import and_, fill_unless_
from grace.kernels import (
    add_low_rank_,
    all_finite,
    orthonormalize,
    product_fits,
    project_columns,
    project_rows,
    split_low_rank,
    unit_rows,
)
from grace.methods.common.factor_bucket import FactorBucket, open_factors
from grace.methods.common.low_rank_bucket import LowRankBucket, open_bucket
from grace.methods.common.matrices import DENSE, LowRank, Sides
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
class PowerSGD(LowRank["Tensor | None"]):
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

    def exchange(self, x: Tensor, state: Tensor | None, peer: Peer) -> Exchange[Exchanged[Tensor | None]]:
        if state is None or not self._begun(peer.step):
            out = yield from DENSE.exchange(x, None, peer)
            return Exchanged(out.mean, out.rest, state, out.finite)
        m, l, r = self._sizes(x)
        q = self._start(state, (m, l, r), peer)
        matrix = x.reshape(m, l).float().contiguous()
        p = yield AllReduce(project_rows(matrix, unit_rows(q.mT.contiguous())), donate=True)  # [r, m]
        finite = all_finite(p)
        if finite is False:
            return Exchanged.poisoned(x, state)
        p = orthonormalize(fill_unless_(finite, p.contiguous(), 0.0))
        own = project_columns(matrix, p)  # [r, l]
        fits = product_fits(p, own)
        if fits is False:  # only a bound; an accelerator makes do with it
            left = matrix.clone()
            add_low_rank_(left, p, own, -1.0)
            fits = all_finite(left)
        q = yield AllReduce(own if fits is True else fill_unless_(fits, own.clone(), math.nan))
        finite = and_(finite, all_finite(q))
        if finite is False:
            return Exchanged.poisoned(x, state)
        mean = room_beside(matrix, peer.lent)
        split_low_rank(matrix if peer.lent.keep_rest else None, p, own, q.contiguous(), mean)
        mean_fits = product_fits(p, q)
        finite = and_(finite, all_finite(mean) if mean_fits is False else mean_fits)
        if finite is False:
            return Exchanged.poisoned(x, state)
        rest = matrix.view(x.shape) if peer.lent.keep_rest else None
        mean, finite = narrow(
            fill_unless_(finite, mean, math.nan), x.dtype, finite, matrix if rest is not None else None
        )
        return Exchanged(mean.view(x.shape), rest, succeed(finite, q.mT, state, peer.lent), finite)

    def _start(self, state: Tensor, sides: Sides, peer: Peer) -> Tensor:
        """The matrix ``[l, r]`` with which a matrix of these sides is projected."""
        _, l, r = sides
        return state if self.warm_start else peer.shared("powersgd").normal(l * r, state.device).view(l, r)

    def batches(self, like: Tensor) -> bool:
        return type(self) is PowerSGD and self._batches(like)

    def exchange_all(
        self, xs: Sequence[Tensor], states: Sequence[Tensor | None], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[Tensor | None]]]:
        """All matrices and all that goes uncompressed: one pass of each kernel, one all-reduce per round."""
        dense = not self._begun(peers[0].step)
        sides = [None if q is None or dense else self._sizes(x) for x, q in zip(xs, states, strict=True)]
        bucket: LowRankBucket | FactorBucket | None = open_bucket(self, sides, xs, peers)
        drawn_as = None if self.warm_start else "powersgd"
        bucket = bucket or open_factors(self, sides, xs, states, peers, drawn_as=drawn_as)
        if bucket is None:
            return (yield from LowRank.exchange_all(self, xs, states, peers))
        if isinstance(bucket, FactorBucket):
            yield from bucket.sum_left()
        else:
            matrices = zip(states, sides, peers, strict=True)
            yield from bucket.sum_left([self._start(q, of, peer) for q, of, peer in matrices if q is not None and of])
        bucket.orthonormalize()
        yield from bucket.sum_right()
        return bucket.split(states)

    def facts(self, like: Tensor) -> Facts:
        if not self._compresses(like):
            return DENSE.facts(like)
        m, l, r = self._sizes(like)
        return Facts(contraction=0.0, deterministic=self.warm_start, randomness="shared", payload=4 * r * (m + l))

    def _sides(self, like: Tensor, step: int) -> tuple[int, ...] | None:
        return LowRank._sides(self, like, step) if self._begun(step) else None
