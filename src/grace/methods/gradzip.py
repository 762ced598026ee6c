"""GradZip: alternating matrix factorization (Cho et al., NeurIPS 2019 workshop).

Letters: M is m x l: m the first dimension, l all others flattened; r the rank; P is m x r, Q is l x r.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from torch import Tensor

from grace.collectives import Exchange
from grace.contract.facts import Facts
from grace.contract.knobs import Count, Positive, Range
from grace.contract.method import Exchanged
from grace.contract.peer import Peers
from grace.contract.workspace import Workspace
from grace.flags.finite import ask_host_of_all
from grace.methods.common.matrices import DENSE, Factored, Sides, as_rows
from grace.methods.common.ridge_bucket import Ridge, exchange_both, open_ridges
from grace.registry import register

_FRESH = 1e-4  # share of fresh random numbers in a factor, which could not leave a subspace without them


class GradZipState(NamedTuple):
    """p, q: the factors, the same on all ranks; p is None if every step finds both. turn: 0 if P is next, 1 if Q is."""

    p: Tensor | None
    q: Tensor
    turn: int

    def given(self) -> tuple[Tensor, Tensor]:
        """The factor that a step starts from, and the other one, if every step has one factor."""
        assert self.p is not None
        return (self.p, self.q) if self.turn else (self.q, self.p)

    def having(self, factor: Tensor, turn: int) -> GradZipState:
        """The same with another Q ``[l, r]`` if the turn is 1, else with another P ``[m, r]``."""
        return self._replace(q=factor) if turn else self._replace(p=factor)


@register(
    "gradzip", memory="residual", family="low rank", cases=["rank=2,min_rate=0.1", "rank=2,min_rate=0.1,alternate=true"]
)
@dataclass(frozen=True, slots=True)
class GradZip(Factored["GradZipState | None"]):
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

    def _average(
        self, sides: Sequence[Sides | None], xs: Sequence[Tensor], states: Sequence[GradZipState | None], peers: Peers
    ) -> Exchange[list[Exchanged[GradZipState | None]]]:
        """All matrices: either both factors, P first, or with ``alternate`` the one whose turn it is."""
        held = {i: state for i, state in enumerate(states) if state is not None and sides[i] is not None}
        ridge, workspace = Ridge(self.lam, "gradzip", _FRESH), peers.like.lent.workspace or Workspace()
        if self.alternate:
            turned = [bool(state.turn) for state in held.values()]
            pairs = [state.given() for state in held.values()]
            given, lasts = [as_rows(factor) for factor, _ in pairs], [as_rows(last) for _, last in pairs]
            bucket = open_ridges(self, ridge, sides, turned, xs, given, lasts, peers, workspace)
            yield from bucket.sum_factors()
            outs, news = bucket.restore(), bucket.succeed()
            turns = ask_host_of_all([outs[i].finite for i in held])
        else:
            qs = [as_rows(state.q) for state in held.values()]
            outs, news = yield from exchange_both(self, ridge, sides, xs, qs, peers, workspace)
        for out, state in zip(outs, states, strict=True):
            out.state = state
        for k, ((i, state), new) in enumerate(zip(held.items(), news, strict=True)):
            # which factor the next step sends depends on whether this one was finite
            turn = state.turn ^ turns[k] if self.alternate else state.turn
            outs[i].state = state.having(new, state.turn if self.alternate else 1)._replace(turn=turn)
        return outs

    def facts(self, like: Tensor) -> Facts:
        if not self._compresses(like):
            return DENSE.facts(like)
        m, l, r = self._sizes(like)
        payload = None if self.alternate else 4 * r * (m + l)
        return Facts(contraction=0.0, deterministic=False, randomness="shared", payload=payload)

    def _sides(self, like: Tensor, step: int) -> tuple[int, ...] | None:
        m, l, _ = self._sizes(like)
        return ((l if step % 2 else m),) if self.alternate else (m, l)
