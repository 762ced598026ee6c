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
from grace.flags.finite import ask_host_of_all
from grace.kernels.factors import draw_many, solve_ridge_many, succeed_many, unit_columns_many
from grace.kernels.many import poison_many
from grace.kernels.staging import finite_many, nonzero_many
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
    """One step of T tensors: either :meth:`sum_first`, :meth:`firsts` and perhaps :meth:`poison`, or :meth:`sum_factors`,
    :meth:`restore` and :meth:`succeed`; each is called once.

    Args:
        plan, xs, given: as in :class:`TurnedBucket`. olds: of each matrix the given factor, ``[s, r]``. lasts: the other one
            of its state, which is to be succeeded; may be empty. widened: whether xs already have what narrow tensors hold.
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
        *,
        widened: bool,
    ):
        TurnedBucket.__init__(self, plan, xs, given, olds, peers, workspace)
        self._ridge, self._widened = ridge, widened
        self._lasts = dict(zip(plan.at, lasts, strict=bool(lasts)))
        self._news = {i: peers.like.lent.borrow_successor(last) for i, last in self._lasts.items()}

    def has_all(self, at: Sequence[int]) -> bool:
        """Whether the tensors ``at`` these places are all of its matrices."""
        return list(at) == self._plan.at

    def rooms_at(self, at: Sequence[int], xs: Sequence[Tensor]) -> Sequence[Tensor]:
        """Where kernels work on the tensors ``at`` these places, which are ``xs``, of any shapes."""
        return xs if self._xs is self._given else [self._xs[i] for i in at]

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

    def firsts(self) -> tuple[dict[int, Exchanged[Any]], list[Tensor], list[Tensor]]:
        """What followed from the first factors: the results of what travelled as it is; and of each matrix the mean factor, of
        rows of r numbers, and whether it is finite.
        """
        (kind,) = self._plan.kinds
        results = self._plan.dense.results(self._message, self._xs, self._means, keep=self._keep)
        self._finite = [finite_many(kind.all, kind.said)]
        return results, self._said(), list(self._finite[0].unbind(0))

    def poison(self) -> dict[int, Exchanged[Any]]:
        """The means of the matrices whose first factor is not finite become NaN: their results, by their numbers."""
        (kind,), (finite,) = self._plan.kinds, self._finite
        if kind.narrow is None:
            poison_many(finite, kind.whole_means)
        else:
            kind.narrow.poison(finite)
        return self._results(kind, finite)

    def succeed(self) -> list[Tensor]:
        """What follows each last factor: the mean, or where it is not finite or all of it is 0 the last one. A zero gradient
        says nothing about where to look next.
        """
        for (kind, _, _, factors), finite in zip(self._kinds(), self._finite, strict=True):
            succeed_many(nonzero_many(finite, kind.said), kind.successors, kind.spans, factors)
        for last in self._lasts.values():
            self._peers.like.lent.give_back(last)
        return list(self._news.values())

    def _widen(self, kind: Kind) -> None:
        if not self._widened:
            TurnedBucket._widen(self, kind)

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
    after: tuple[RidgeBucket, Sequence[int]] | None = None,
) -> RidgeBucket | None:
    """As :func:`grace.methods.common.turned_bucket.open_turned`. ``olds``: of each matrix the given factor; ``lasts``: as in
    :class:`RidgeBucket`. ``after``: a bucket that made the given factors, and where these tensors, all of them matrices, are
    among its own; without it fresh numbers are added to these factors.
    """
    rooms = rooms_of(sides, xs, (*olds, *lasts), peers) if after is None else after[0].rooms_at(after[1], xs)
    if rooms is None:
        return None
    drawn_as, of = (ridge.drawn_as, None) if after is None else (None, after[1])
    found = find_plan(RidgeBucket, owner, sides, turned, xs, rooms, peers, drawn_as=drawn_as, of=of)
    if found is None:
        return None
    workspace, place, plan = found
    widened = after is not None
    bucket = RidgeBucket(plan, rooms, xs, olds, lasts, Peers.of(peers), workspace, ridge, widened=widened)
    if not bucket.point():
        bucket.forget()
        return None
    if after is None or after[0].has_all(after[1]):  # of other sets there are 2^T, hardly ever seen again
        workspace.keep(*place, plan)
    return bucket


def exchange_both(
    owner: object,
    ridge: Ridge,
    first: RidgeBucket,
    xs: Sequence[Tensor],
    sides: Sequence[Sides | None],
    lasts: dict[int, Tensor],
    peers: Peers,
) -> Exchange[tuple[list[Exchanged[Any]], dict[int, Tensor]]]:
    """Both factors of each matrix, but of those whose first one is not finite; the host is asked which these are. The bucket
    ``first`` was opened for these tensors; ``lasts``: of each matrix, by its number among them, the last second factor
    ``[l, r]``.

    Returns:
        The results, and what follows the last factors.
    """
    yield from first.sum_first()
    outs, means, flags = first.firsts()
    given = {t: mean for t, mean, fine in zip(lasts, means, ask_host_of_all(flags), strict=True) if fine}
    if len(given) < len(lasts):
        outs.update(first.poison())  # and of the others what follows is put in its place
    if not given:
        return [outs[t] for t in range(len(xs))], {}
    some, shapes, olds = [xs[t] for t in given], [sides[t] for t in given], [lasts[t] for t in given]
    turned, after = [True] * len(given), (first, tuple(given))
    second = open_ridges(
        owner, ridge, shapes, turned, some, list(given.values()), olds, peers.only(tuple(given)), after=after
    )
    assert second is not None, "the host was asked, so that no work is captured"
    yield from second.sum_factors()
    outs.update(zip(given, second.restore()[0], strict=True))
    return [outs[t] for t in range(len(xs))], dict(zip(given, second.succeed(), strict=True))
