"""GradZip: alternating matrix factorization (Cho et al., NeurIPS 2019 workshop).

Letters: M is m x l: m the first dimension, l all others flattened; r the rank; P is m x r, Q is l x r.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from grace.collectives import AllReduce, Exchange, Traffic, cost
from grace.communicators import Allreduce
from grace.facts import Facts
from grace.finite import known
from grace.kernels import all_finite, project_rows, solve_ridge, sum_by_halves
from grace.knobs import Count, Positive, Range
from grace.method import Exchanged, Method, label_parts
from grace.methods.common.matrices import DENSE, LowRank, Projection
from grace.peer import Peer
from grace.random import Stream
from grace.registry import register

_FRESH = 1e-4  # share of fresh random numbers in a factor, without which it could not leave a space that it fell into


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
    """GradZip: two factors of the mean gradient by one step of alternating, regularised least squares.

    ``P = mean of M_w Q (Q^T Q + a I)^-1;  Q = mean of M_w^T P (P^T P + b I)^-1;  C = P Q^T``, where a = lam tr(Q^T Q)/r
    and b = lam tr(P^T P)/r; Q is where the next step starts

    Args:
        rank: r, >= 1; at most min(m, l) is used.
        lam: weight of the regulariser, relative to the factor's own size, in [1e-9, 1e3].
        min_rate: matrices with at most min_rate r (m + l) elements go uncompressed, > 0.
        alternate: one factor per step: P of the last Q in one, Q of the last P in the next.
    Wire:
        P and Q (float32): 32 r (m + l) bits, two rounds, summed by the network; with ``alternate`` 32 r m and 32 r l
        bits in turn, one round. Tensors of fewer than two dimensions
        go uncompressed.
    Bias:
        biased: shrinks, and its error never exceeds the mean. Exact only for a mean of rank r or less, as lam goes to 0.
    Differs from the paper:
        the paper's schedule is not public; this is one alternation per step. The regulariser is relative, so that the
        scale of gradients does not matter. A ten-thousandth of the given factor is fresh random numbers.
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

    def with_memory(self) -> Method[Any]:
        return self

    def init(self, like: Tensor) -> GradZipState | None:
        """P ``[m, r]`` and Q ``[l, r]``, the same on all ranks; None for tensors that go uncompressed."""
        if not self._compresses(like):
            return None
        m, l, r = self._sizes(like)
        stream = Stream(0, "gradzip", f"{m}x{l}", None, 0)
        p, q = (stream.fork(i).normal(side * r, like.device).view(side, r) for i, side in enumerate((m, l)))
        return GradZipState(p if self.alternate else None, q, 0)

    def exchange(self, x: Tensor, state: GradZipState | None, peer: Peer) -> Exchange[Exchanged[GradZipState | None]]:
        if state is None:
            return (yield from DENSE.exchange(x, None, peer))
        m, l, _ = self._sizes(x)
        turn = state.turn
        given, found = (state.p, state.q) if turn else (state.q, state.p)
        assert given is not None
        fresh = peer.shared("gradzip").normal(given.numel(), x.device).view(given.shape)
        given = (_unit(given) + fresh * _FRESH).mT.contiguous()  # [r, m] or [r, l]
        if found is None:  # both factors in this step
            encode, _ = _bound(solve_ridge(given, self.lam))
            matrix = x.reshape(m, l).float().contiguous()
            p = yield AllReduce(project_rows(matrix, encode).mT.contiguous(), donate=True)  # [m, r]
            if not known(all_finite(p)):
                return Exchanged.poisoned(x, state)
            turn, given, found = 1, _unit(p).mT.contiguous(), state.q
        encode, scale = _bound(solve_ridge(given, self.lam))
        projection = Projection(m, l, encode, given * scale, transposed=bool(turn))
        out = yield from Allreduce(projection).exchange(x, None, peer)
        if not known(out.finite):  # which factor the next step sends depends on it
            return Exchanged.poisoned(x, state)
        if bool(projection.factor.any()):  # a zero gradient says nothing about where to look next
            found.copy_(projection.factor)
        return Exchanged(out.mean, out.rest, state._replace(turn=1 - turn))

    def kinds(self, state: GradZipState | None) -> Any:
        return label_parts(state, "shared")

    def facts(self, like: Tensor) -> Facts:
        if not self._compresses(like):
            return DENSE.facts(like)
        m, l, r = self._sizes(like)
        return Facts(contraction=0.0, deterministic=False, payload=None if self.alternate else 4 * r * (m + l))

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        if not self._compresses(like):
            return DENSE.traffic(like, peer)
        m, l, r = self._sizes(like)
        sides = ((l if peer.step % 2 else m),) if self.alternate else (m, l)
        factors = (torch.empty(side, r, device="meta") for side in sides)
        return sum((cost(AllReduce(factor), peer.rank, peer.world) for factor in factors), Traffic())


def _unit(factor: Tensor) -> Tensor:
    """A factor scaled so that its largest number is 1; the product of both does not depend on it. Zero stays zero."""
    return factor / factor.abs().max().clamp_min(torch.finfo(factor.dtype).tiny)


def _bound(factor: Tensor) -> tuple[Tensor, float]:
    """``[r, s]`` float64 -> float32 with rows of norm 1/sqrt(s) or less, so that a product with it cannot overflow, and
    what it was divided by.
    """
    scale = math.sqrt(factor.shape[1]) * float(sum_by_halves(factor.square()).max().sqrt()) or 1.0
    return (factor * (1 / scale)).float(), scale
