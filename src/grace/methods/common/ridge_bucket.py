"""The matrices of a bucket on an accelerator whose factors solve ridge regressions, and what travels uncompressed beside
them: as many launches as one of each takes, with the bits of single exchanges.

Letters: M is m x l; the factor that travels has one of these sides, the given one, of s rows, the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from grace.collectives import Exchange
from grace.contract.method import Exchanged
from grace.contract.peer import Peer, Peers
from grace.contract.workspace import Workspace
from grace.kernels.low_rank.grouped import draw_many, solve_ridge_many, succeed_many, unit_columns_many
from grace.kernels.multi_tensor import clear_many, finite_many, nonzero_many
from grace.methods.common.factor_bucket import rows_of
from grace.methods.common.matrices import Sides
from grace.methods.common.turned_bucket import Kind, TurnedBucket, TurnedPlan, find_plan, rooms_of


class Ridge(NamedTuple):
    """lam: weight of the regularizer. drawn_as: the name of the method whose shared streams draw fresh numbers. share: how
    much of these is added to a given factor.
    """

    lam: float
    drawn_as: str
    share: float


class RidgeBucket(TurnedBucket):
    """A step of T tensors: either :meth:`sum_first` and :meth:`firsts`, or :meth:`sum_factors`, :meth:`restore` and
    :meth:`succeed`; each is called once.

    Args:
        plan, xs, given: as in :class:`TurnedBucket`. olds: of each matrix the given factor, ``[s, r]``. lasts: the other one
            of its state, which is to be succeeded; may be empty. after: the bucket that makes the given factors, of the same
            matrices; its tensors already have what narrow ones hold.

    finite: of the matrices, whether their first factors are, ``[T]``, once there are any.
    """

    def __init__(
        self,
        plan: TurnedPlan,
        xs: Sequence[Tensor],
        given: Sequence[Tensor],
        olds: Sequence[Tensor],
        lasts: Sequence[Tensor],
        peers: Peers,
        workspace: Workspace,
        ridge: Ridge,
        after: RidgeBucket | None = None,
    ):
        TurnedBucket.__init__(self, plan, xs, given, olds, peers, workspace)
        self._ridge, self._after = ridge, after
        self.finite: Tensor | None = None
        self._lasts = dict(zip(plan.at, lasts, strict=bool(lasts)))
        self._news = {i: peers.like.lent.borrow_successor(last) for i, last in self._lasts.items()}

    @property
    def matrices(self) -> list[int]:
        """The indices of those of its tensors that are matrices."""
        return self._plan.at

    def open_second(
        self, owner: object, sides: Sequence[Sides | None], xs: Sequence[Tensor], lasts: dict[int, Tensor]
    ) -> RidgeBucket | None:
        """The bucket of all its matrices that fits their other factors to those that this one makes, as :func:`open_ridges`.
        ``lasts``: of each matrix, by its number among ``xs``, the last one of these, ``[l, r]``.
        """
        at = self.matrices
        some, peers = [xs[i] for i in at], self._peers.only(tuple(at))
        olds, turned, last = self._received(), [True] * len(at), [lasts[i] for i in at]
        return open_ridges(owner, self._ridge, [sides[i] for i in at], turned, some, olds, last, peers, after=self)

    def rooms_of_matrices(self, xs: Sequence[Tensor]) -> Sequence[Tensor]:
        """Rooms in which kernels work on its matrices, which are ``xs``, of any shapes."""
        return xs if self._xs is self._given else [self._xs[i] for i in self.matrices]

    def point(self) -> bool:
        there = TurnedBucket.point(self)
        for kind, _, narrow, _ in self._kinds():
            if kind.drawn is not None:
                there = there and kind.drawn.point(rows_of(kind.spans.cut(narrow, kind.spans.lefts)))
            if self._lasts:
                lasts, news = ([held[i] for i in kind.at] for held in (self._lasts, self._news))
                there = there and kind.successors.point(rows_of(lasts), None, rows_of(news))
        return there

    def forget(self) -> None:
        """The step is not made: what was borrowed for it is given back."""
        for new in self._news.values():
            self._peers.like.lent.give_back(new)

    def sum_first(self) -> Exchange[None]:
        """The mean of each matrix's factor to the given one; what is left of the matrix is not known yet."""
        for each in self._kinds():
            self._project(*each)
        yield from self._sum()

    def firsts(self) -> dict[int, Exchanged[Any]]:
        """Results of the tensors that travelled uncompressed. First factors that are not finite become 0."""
        (kind,) = self._plan.kinds
        self.finite = finite_many(kind.all, kind.received)
        clear_many(self.finite, kind.received)
        return self._plan.dense.results(self._message, self._xs, self._means, keep=self._keep)

    def succeed(self) -> list[Tensor]:
        """The next value of each last factor: the mean, or where it is not finite or all of it is 0 the last one. A zero
        gradient says nothing about where to look next.
        """
        for (kind, _, _, factors), finite in zip(self._kinds(), self._finite, strict=True):
            succeed_many(nonzero_many(finite, kind.received), kind.successors, kind.spans, factors)
        for last in self._lasts.values():
            self._peers.like.lent.give_back(last)
        return list(self._news.values())

    def _widen(self, kind: Kind) -> None:
        if self._after is None:
            TurnedBucket._widen(self, kind)

    def _fine(self, kind: Kind) -> Tensor:
        if self._after is None:
            return TurnedBucket._fine(self, kind)
        assert self._after.finite is not None
        return self._after.finite

    def _make_bases(self, kind: Kind, wide: Tensor, narrow: Tensor) -> None:
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
    peers: Sequence[Peer],
    *,
    after: RidgeBucket | None = None,
) -> RidgeBucket | None:
    """As :func:`grace.methods.common.turned_bucket.open_turned`. ``olds``: of each matrix the given factor; ``lasts``: as in
    :class:`RidgeBucket`. ``after``: the bucket whose matrices these tensors are, and which makes the given factors; without
    it fresh numbers are added to these.
    """
    rooms = rooms_of(sides, xs, (*olds, *lasts), peers) if after is None else after.rooms_of_matrices(xs)
    if rooms is None:
        return None
    drawn_as, of = (ridge.drawn_as, None) if after is None else (None, after.matrices)
    bucket_plan = find_plan(RidgeBucket, owner, sides, turned, xs, rooms, peers, drawn_as=drawn_as, of=of)
    if bucket_plan is None:
        return None
    workspace, place, plan = bucket_plan
    bucket = RidgeBucket(plan, rooms, xs, olds, lasts, Peers.of(peers), workspace, ridge, after)
    if not bucket.point():
        bucket.forget()
        return None
    workspace.keep(*place, plan)
    return bucket


def exchange_both(first: RidgeBucket, second: RidgeBucket) -> Exchange[tuple[dict[int, Exchanged[Any]], list[Tensor]]]:
    """Both factors of each matrix: the second to the mean of the first, or where that is not finite to 0, so that nobody has
    to know. ``second`` is what :meth:`RidgeBucket.open_second` has given.

    Returns:
        The results of the tensors, by their numbers, and of each matrix what follows its last second factor.
    """
    yield from first.sum_first()
    outs = first.firsts()
    yield from second.sum_factors()
    outs.update(zip(first.matrices, second.restore()[0], strict=True))
    return outs, second.succeed()
