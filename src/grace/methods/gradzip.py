"""GradZip: alternating matrix factorization (Cho et al., NeurIPS 2019 workshop).

Letters: M is m x l: m the first dimension, l all others flattened; r the rank; P is m x r, Q is l x r.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from torch import Tensor

from grace.collectives import AllReduce, Exchange
from grace.communicators import Allreduce
from grace.contract.facts import Facts
from grace.contract.knobs import Count, Positive, Range
from grace.contract.loan import succeed
from grace.contract.method import Exchanged
from grace.contract.peer import Peer
from grace.flags.finite import ask_host
from grace.kernels import all_finite, project_rows, solve_ridge
from grace.methods.common.matrices import DENSE, LowRank, Projection, bound_rows, unit
from grace.registry import register

_FRESH = 1e-4  # share of fresh random numbers in a factor, which could not leave a subspace without them


class GradZipState(NamedTuple):
    """p, q: the factors, the same on all ranks; p is None if every step finds both. turn: 0 if P is next, 1 if Q is."""

    p: Tensor | None
    q: Tensor
    turn: int


@register(
    "gradzip", memory="residual", family="low rank", cases=["rank=2,min_rate=0.1", "rank=2,min_rate=0.1,alternate=true"]
)
@dataclass(frozen=True, slots=True)
class GradZip(LowRank["GradZipState | None"]):
    """GradZip: two factors of the mean gradient by one step of alternating, regularized least squares.

    ``P = mean of M_w Q (Q^T Q + a I)^-1;  Q = mean of M_w^T P (P^T P + b I)^-1;  C = P Q^T``, where a = lam tr(Q^T Q)/r
    and b = lam tr(P^T P)/r; Q is where the next step starts

    Args:
        rank: r, >= 1; at most min(m, l) is used.
        lam: weight of the regularizer, relative to the factor's own size, in [1e-9, 1e3].
        min_rate: matrices with at most min_rate r (m + l) elements go uncompressed, > 0.
        alternate: one factor per step: P of the last Q in one, Q of the last P in the next.
    Wire:
        P and Q (float32): 32 r (m + l) bits, two rounds, summed by the network; with ``alternate`` 32 r m and 32 r l
        bits in turn, one round. Tensors of fewer than two dimensions go uncompressed.
    Bias:
        biased: shrinks, and its error never exceeds the mean. Exact only for a mean of rank r or less, as lam goes to 0.
    Differs from the paper:
        the paper's schedule is not public; this is one alternation per step. The regularizer is relative, so that the
        scale of gradients does not matter. Fresh random numbers of a ten-thousandth of its size are added to the given
        factor.
    Example:
        >>> method("gradzip:rank=2")
        ErrorFeedback(method=GradZip(rank=2, lam=0.001, min_rate=2.0, alternate=False), beta=1.0, gamma=1.0)

    Reference:
        Cho, Muthusamy, Nemanich and Puri, "GradZip: Gradient Compression using Alternating Matrix Factorization for
        Large-scale Deep Learning", NeurIPS 2019 workshop on systems for machine learning.
    """

    rank: Count = 4
    lam: Annotated[float, Range(1e-9, 1e3)] = 1e-3
    min_rate: Positive = 2.0
    alternate: bool = False

    def init(self, like: Tensor) -> GradZipState | None:
        """P ``[m, r]`` and Q ``[l, r]``, the same on all ranks; None for tensors that go uncompressed."""
        if not self._compresses(like):
            return None
        p, q = self._draw_factors(like, "gradzip")
        return GradZipState(p if self.alternate else None, q, 0)

    def exchange(self, x: Tensor, state: GradZipState | None, peer: Peer) -> Exchange[Exchanged[GradZipState | None]]:
        if state is None:
            return (yield from DENSE.exchange(x, None, peer))
        m, l, _ = self._sizes(x)
        turn = state.turn
        given, other = (state.p, state.q) if turn else (state.q, state.p)
        assert given is not None
        fresh = peer.shared("gradzip").normal(given.numel(), x.device).view(given.shape)
        given = (unit(given) + fresh * _FRESH).mT.contiguous()  # [r, m] or [r, l]
        if other is None:  # both factors in this step
            encode, _ = bound_rows(solve_ridge(given, self.lam))
            matrix = x.reshape(m, l).float().contiguous()
            p = yield AllReduce(project_rows(matrix, encode).mT.contiguous(), donate=True)  # [m, r]
            if not ask_host(all_finite(p)):
                return Exchanged.poisoned(x, state)
            turn, given, other = 1, unit(p).mT.contiguous(), state.q
        encode, scale = bound_rows(solve_ridge(given, self.lam))
        projection = Projection(m, l, encode, given * scale, transposed=bool(turn))
        out = yield from Allreduce(projection).exchange(x, None, peer)
        if not ask_host(out.finite):  # which factor the next step sends depends on it
            return Exchanged.poisoned(x, state)
        if bool(projection.factor.any()):  # a zero gradient says nothing about where to look next
            factor = succeed(True, projection.factor, other, peer.lent)
            state = state._replace(q=factor) if turn else state._replace(p=factor)
        return Exchanged(out.mean, out.rest, state._replace(turn=1 - turn))

    def facts(self, like: Tensor) -> Facts:
        if not self._compresses(like):
            return DENSE.facts(like)
        m, l, r = self._sizes(like)
        return Facts(contraction=0.0, deterministic=False, payload=None if self.alternate else 4 * r * (m + l))

    def _sides(self, like: Tensor, step: int) -> tuple[int, ...] | None:
        m, l, _ = self._sizes(like)
        return ((l if step % 2 else m),) if self.alternate else (m, l)
