"""GradZip: alternating matrix factorization (Cho et al., NeurIPS 2019 workshop).

Letters: M is m x l: m the first dimension, l all others flattened; r the rank; P is m x r, Q is l x r.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from torch import Tensor

from grace.collectives import AllReduce, Exchange
from grace.communicators import Allreduce
from grace.contract.facts import Facts
from grace.contract.knobs import Count, Positive, Range
from grace.contract.loan import rests_in_place, succeed
from grace.contract.method import Exchanged
from grace.contract.peer import Peer, Peers
from grace.contract.together import together
from grace.flags.finite import Flag, and_, ask_host, ask_host_of_all, fill_unless_, flag, on_host
from grace.kernels import all_finite, bound_rows, project_rows, solve_ridge, unit_factor
from grace.methods.common.matrices import DENSE, LowRank, Projection
from grace.methods.common.ridge_bucket import Ridge, RidgeBucket, exchange_both, open_ridges
from grace.methods.common.turned_bucket import exchange_dense
from grace.registry import register

_FRESH = 1e-4  # share of fresh random numbers in a factor, which could not leave a subspace without them


class Given(NamedTuple):
    """factor: what the other one is fitted to, ``[r, m]`` or ``[r, l]``. turn: 1 if that is Q. finite: whether it is."""

    factor: Tensor
    turn: int
    finite: Flag


class GradZipState(NamedTuple):
    """p, q: the factors, the same on all ranks; p is None if every step finds both. turn: 0 if P is next, 1 if Q is."""

    p: Tensor | None
    q: Tensor
    turn: int

    def given(self) -> tuple[Tensor, Tensor | None]:
        """The factor that a step starts from, and the other one."""
        given, other = (self.p, self.q) if self.turn else (self.q, self.p)
        assert given is not None
        return given, other

    def having(self, factor: Tensor, turn: int) -> GradZipState:
        """The same with another Q ``[l, r]`` if the turn is 1, else with another P ``[m, r]``."""
        return self._replace(q=factor) if turn else self._replace(p=factor)


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
        given = yield from self._give(x, state, peer)
        out = yield from self._fit(x, state, peer, given)
        return self._turn(x, state, out, ask_host(out.finite)) if self.alternate else out

    def batches(self, like: Tensor) -> bool:
        """On an accelerator, for tensors of any shapes; with ``alternate`` the host is asked once for all of them."""
        return type(self) is GradZip and not on_host(like.device) and self._batches(like)

    def exchange_all(
        self, xs: Sequence[Tensor], states: Sequence[GradZipState | None], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[GradZipState | None]]]:
        """Tensors of any shapes; where kernels take them, by few launches."""
        if not xs or not self.batches(xs[0]):
            return (yield from LowRank.exchange_all(self, xs, states, peers))
        held = {t: state for t, state in enumerate(states) if state is not None}
        pairs, turned = [state.given() for state in held.values()], [bool(state.turn) for state in held.values()]
        lasts = [last for _, last in pairs if last is not None] if self.alternate else []
        sides = [self._sizes(x) if t in held else None for t, x in enumerate(xs)]
        ridge, given = Ridge(self.lam, "gradzip", _FRESH), [factor for factor, _ in pairs]
        bucket = open_ridges(self, ridge, sides, turned, xs, given, lasts, peers) if held else None
        if bucket is not None and self.alternate:
            return (yield from self._alternate(bucket, held))
        qs = {t: state.q for t, state in held.items()}
        second = None if bucket is None else bucket.open_second(self, sides, xs, qs)
        if bucket is None or second is None:
            return (yield from self._exchange_each(xs, held, peers))
        outs, news = yield from exchange_both(bucket, second)
        for (t, state), new in zip(held.items(), news, strict=True):
            outs[t].state = state.having(new, 1)
        return [outs[t] for t in range(len(xs))]

    def _alternate(
        self, bucket: RidgeBucket, held: dict[int, GradZipState]
    ) -> Exchange[list[Exchanged[GradZipState | None]]]:
        """Exchanges one factor of each matrix."""
        yield from bucket.sum_factors()
        outs: list[Exchanged[Any]] = list(bucket.restore()[0])
        news = bucket.succeed()
        fine = ask_host_of_all([outs[t].finite for t in held])
        for (t, state), new, done in zip(held.items(), news, fine, strict=True):
            outs[t].state = state.having(new, state.turn)._replace(turn=state.turn ^ done)
        return outs

    def _exchange_each(
        self, xs: Sequence[Tensor], held: dict[int, GradZipState], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[GradZipState | None]]]:
        """Matrices one after the other, and what travels uncompressed together, where kernels take it by few launches."""
        workspace, each = peers[0].lent.workspace, [(xs[t], state, peers[t]) for t, state in held.items()]
        dense = [t for t in range(len(xs)) if t not in held]
        places = [(t,) for t in held] + [tuple(dense)] * bool(dense)
        plain = Peers.of([peers[t] for t in dense]) if dense else None
        outs: dict[int, Exchanged[Any]] = {}

        def give_dense() -> list[Exchange[Any]]:
            return [] if plain is None else [exchange_dense(self, [xs[t] for t in dense], plain)]

        # What travels uncompressed does so in the first round, which is the only one with alternate.
        runs: list[Exchange[Any]] = [self._give(*arguments) for arguments in each]
        runs += [] if self.alternate else give_dense()
        givens = yield from together(runs, None, workspace, places[: len(runs)], labels=True)
        runs = [self._fit(*arguments, given) for arguments, given in zip(each, givens, strict=False)]
        runs += give_dense() if self.alternate else []
        fitted = yield from together(runs, None, workspace, places[: len(runs)], labels=True)
        told = (fitted if self.alternate else givens)[len(held) :]
        outs.update(zip(dense, told[0] if told else (), strict=True))
        outs.update(zip(held, fitted, strict=False))
        if self.alternate:
            turns = ask_host_of_all([outs[t].finite for t in held])
            for (x, state, _), t, done in zip(each, held, turns, strict=True):
                outs[t] = self._turn(x, state, outs[t], done)
        return rests_in_place([outs[t] for t in range(len(xs))], xs)

    def _give(self, x: Tensor, state: GradZipState, peer: Peer) -> Exchange[Given]:
        """The factor that this step starts from, or if both are sent the mean of the first, or where that is not finite 0: the
        second travels anyway, so that nobody has to know.
        """
        m, l, _ = self._sizes(x)
        given, _ = state.given()
        fresh = peer.shared("gradzip").normal(given.numel(), x.device).view(given.shape)
        given = (unit_factor(given) + fresh * _FRESH).mT.contiguous()  # [r, m] or [r, l]
        if self.alternate:
            return Given(given, state.turn, True)
        encode, _ = bound_rows(solve_ridge(given, self.lam))
        matrix = x.reshape(m, l).float().contiguous()
        p = yield AllReduce(project_rows(matrix, encode).mT.contiguous(), donate=True)  # [m, r]
        finite = all_finite(p)
        fill_unless_(finite, p, 0.0)
        return Given(unit_factor(p).mT.contiguous(), 1, finite)

    def _fit(
        self, x: Tensor, state: GradZipState, peer: Peer, given: Given
    ) -> Exchange[Exchanged[GradZipState | None]]:
        """The mean of the factor that fits the given one."""
        m, l, _ = self._sizes(x)
        encode, scale = bound_rows(solve_ridge(given.factor, self.lam))
        projection = Projection(m, l, encode, given.factor * scale, transposed=bool(given.turn))
        out = yield from Allreduce(projection).exchange(x, None, peer)
        finite = and_(out.finite, given.finite)
        if finite is False:
            return Exchanged.poisoned(x, state)
        fill_unless_(given.finite, out.mean, math.nan)
        # A zero gradient says nothing about where to look next.
        some = and_(finite, flag(projection.factor.any()))
        old = state.q if given.turn else state.p
        assert old is not None
        factor = succeed(some, projection.factor, old, peer.lent)
        return Exchanged(out.mean, out.rest, state.having(factor, given.turn), finite)

    def _turn(
        self, x: Tensor, state: GradZipState, out: Exchanged[GradZipState | None], fine: bool
    ) -> Exchanged[GradZipState | None]:
        """The result of an alternating step: which factor the next one sends depends on whether it was ``fine``."""
        assert out.state is not None
        if not fine:  # the same numbers, where they are now
            return Exchanged.poisoned(x, out.state)
        return Exchanged(out.mean, out.rest, out.state._replace(turn=1 - state.turn), out.finite)

    def facts(self, like: Tensor) -> Facts:
        if not self._compresses(like):
            return DENSE.facts(like)
        m, l, r = self._sizes(like)
        payload = None if self.alternate else 4 * r * (m + l)
        return Facts(contraction=0.0, deterministic=False, randomness="shared", payload=payload)

    def _sides(self, like: Tensor, step: int) -> tuple[int, ...] | None:
        m, l, _ = self._sizes(like)
        return ((l if step % 2 else m),) if self.alternate else (m, l)
