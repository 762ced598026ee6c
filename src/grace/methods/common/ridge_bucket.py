"""The matrices of a bucket whose factors solve ridge regressions, and what travels uncompressed beside them.

Letters: M is m x l; the factor that travels has one of these sides, the given one, of s rows, the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from grace.collectives import Exchange
from grace.contract.method import Exchanged
from grace.contract.peer import Peers
from grace.contract.workspace import Workspace
from grace.kernels.low_rank.grouped import draw_many, solve_ridge_many, succeed_many, unit_columns_many
from grace.kernels.multi_tensor import clear_many, finite_many, nonzero_many
from grace.methods.common.low_rank_bucket import OtherNumbers, only
from grace.methods.common.matrices import Sides
from grace.methods.common.projection_bucket import Kind, ProjectionBucket, ProjectionPlan, find_projection_plan


class Ridge(NamedTuple):
    """lam: weight of the regularizer. drawn_as: the name of the method whose shared streams draw fresh numbers. share: how
    much of these is added to a given factor.
    """

    lam: float
    drawn_as: str
    share: float


class RidgeBucket(ProjectionBucket):
    """A step of T tensors: either :meth:`sum_first` and :meth:`firsts`, or :meth:`sum_factors`, :meth:`restore` and
    :meth:`succeed`; each is called once.

    Args:
        plan, xs, olds, peers: as in :class:`ProjectionBucket`. lasts: of each matrix the other factor of its state, which is
            to be succeeded; may be empty. after: the bucket that makes the given factors, of the same matrices; its tensors
            already have what rooms hold.
    """

    def __init__(
        self,
        plan: ProjectionPlan,
        xs: Sequence[Tensor],
        olds: Sequence[Tensor],
        lasts: Sequence[Tensor],
        peers: Peers,
        workspace: Workspace,
        ridge: Ridge,
        after: RidgeBucket | None = None,
    ):
        rooms = None if after is None else only(after.xs, after.plan.at)
        ProjectionBucket.__init__(self, plan, xs, olds, peers, workspace, rooms)
        self._ridge, self._after = ridge, after
        if after is not None:
            self.low = {t: after.low[i] for t, i in enumerate(after.plan.at) if i in after.low}
        self._lasts = lasts
        self._news = [peers.like.lent.borrow_successor(last) for last in lasts]
        for kind in plan.kinds:
            if kind.drawn is not None:
                kind.drawn.point(kind.spans.cut(self.rooms_of(kind)[1], kind.spans.lefts))
            if lasts:
                own = [plan.at.index(i) for i in kind.at]
                kind.successors.point(only(lasts, own), None, only(self._news, own))

    def sum_first(self) -> Exchange[None]:
        """The mean of each matrix's factor to the given one; what is left of the matrix is not known yet."""
        for kind in self.plan.kinds:
            self.project(kind)
        yield from self.sum_message()

    def firsts(self) -> dict[int, Exchanged[Any]]:
        """Results of the tensors that travelled uncompressed. First factors that are not finite become 0."""
        for kind in self.plan.kinds:
            self.finite = [finite_many(kind.received.all_set, kind.received)]
            clear_many(self.finite[0], kind.received)
        return self.plan.dense.results(self.message, self.xs, self.means, keep=self.keep)

    def succeed(self) -> list[Tensor]:
        """The next value of each last factor: the mean, or where it is not finite or all of it is 0 the last one. A zero
        gradient says nothing about where to look next.
        """
        for kind, finite in zip(self.plan.kinds, self.finite, strict=True):
            succeed_many(nonzero_many(finite, kind.received), kind.successors, kind.spans, self.rooms_of(kind)[2])
        for last in self._lasts:
            self._peers.like.lent.give_back(last)
        return self._news

    def widen(self, others: OtherNumbers | None, at: Sequence[int]) -> None:
        if self._after is None:
            ProjectionBucket.widen(self, others, at)
        elif others is not None:
            others.point(only(self.given, at), only(self.xs, at), only(self.outs, at), keep=self.keep)

    def make_bases(self, kind: Kind, wide: Tensor, narrow: Tensor) -> None:
        if kind.drawn is not None:
            draw_many(narrow, kind.drawn, self._peers.like.step)
        unit_columns_many(wide, kind.olds, kind.spans, kind.drawn, self._ridge.share)
        solve_ridge_many(wide, narrow, kind.spans, self._ridge.lam)


def open_ridges(
    owner: object,
    ridge: Ridge,
    sides: Sequence[Sides | None],
    turned: Sequence[bool],
    xs: Sequence[Tensor],
    olds: Sequence[Tensor],
    lasts: Sequence[Tensor],
    peers: Peers,
    workspace: Workspace,
    after: RidgeBucket | None = None,
) -> RidgeBucket:
    """A step of these tensors, whose matrices have these sides. ``turned``: of each matrix, whether its factor has l rows;
    ``olds``: the given one. Without ``after`` fresh numbers are added to these. Others as in :class:`RidgeBucket`.
    """
    drawn_as, of = (ridge.drawn_as, None) if after is None else (None, after.plan.at)
    plan = find_projection_plan(owner, sides, turned, xs, peers, workspace, drawn_as=drawn_as, of=of)
    return RidgeBucket(plan, xs, olds, lasts, peers, workspace, ridge, after)


def exchange_both(
    owner: object,
    ridge: Ridge,
    sides: Sequence[Sides | None],
    xs: Sequence[Tensor],
    qs: Sequence[Tensor],
    peers: Peers,
    workspace: Workspace,
) -> Exchange[tuple[list[Exchanged[Any]], list[Tensor]]]:
    """Both factors of each matrix: P to the last Q, and Q to the mean of P, or where that is not finite to 0, so that nobody
    has to know.

    Returns:
        The results of the tensors, and of each matrix what follows its Q.
    """
    first = open_ridges(owner, ridge, sides, [False] * len(qs), xs, qs, (), peers, workspace)
    yield from first.sum_first()
    outs = first.firsts()
    at = first.plan.at
    if not at:
        return [outs[i] for i in range(len(xs))], []
    second = open_ridges(
        owner,
        ridge,
        first.plan.sides,
        [True] * len(qs),
        only(xs, at),
        first.received(),
        qs,
        peers.only(at),
        workspace,
        first,
    )
    yield from second.sum_factors()
    outs.update(zip(at, second.restore(among=first.finite[0]), strict=True))
    return [outs[i] for i in range(len(xs))], second.succeed()
