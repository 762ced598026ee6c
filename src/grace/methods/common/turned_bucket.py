"""The matrices of a bucket on an accelerator of which one factor travels, and what travels uncompressed beside them: as many
launches as one of each takes, one all-reduce, with the bits of single exchanges.

Letters: M is m x l; its factor has one of these sides, the basis, of s rows, the other one. Matrices whose factor has l rows
are turned; those of a kind go together.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from grace.collectives import AllReduce, Exchange, Parts
from grace.compute.host import host_int64, to_device
from grace.contract.method import Exchanged
from grace.contract.peer import Peer, Peers
from grace.contract.workspace import Workspace
from grace.flags.capturing import capturing
from grace.kernels.low_rank.grouped import (
    Factors,
    add_low_rank_many,
    begins,
    gather_rows_many,
    orthonormalize_many,
    project_columns_many,
    project_rows_many,
    scatter_rows_many,
    split_low_rank_many,
)
from grace.kernels.multi_tensor import finite_many, round_many, widen_many
from grace.kernels.tensor_list import TensorList, poison_many
from grace.methods.common.factor_bucket import DenseTensors, may_open, put_answer, rows_of
from grace.methods.common.matrices import DENSE, Sides, is_plain
from grace.methods.common.narrow_matrices import NarrowMatrices, rooms_for
from grace.random import Stream


class Tails:
    """The numbers behind the matrices in their tensors, which travel uncompressed behind the factors.

    Args:
        ends: how many numbers precede the tail of each tensor. sides: likewise, in the message. sizes: numbers of each tensor.
    """

    def __init__(self, ends: Sequence[int], sides: Sequence[int], sizes: Sequence[int], device: torch.device):
        self._at = [(t, end, side) for t, (end, side, n) in enumerate(zip(ends, sides, sizes, strict=True)) if end < n]
        tails = [sizes[t] - end for t, end, _ in self._at]
        self._sent, self._received, self._means = (TensorList(tails, (), (), device) for _ in range(3))

    def point(self, xs: Sequence[Tensor], means: Sequence[Tensor], parts: Sequence[Tensor]) -> bool:
        """From now on these are the tensors, rooms for their means, and their parts of the message, all ``[1, n]``."""
        there = self._sent.point([xs[t][:, end:] for t, end, _ in self._at])
        there = there and self._means.point([means[t][:, end:] for t, end, _ in self._at])
        return there and self._received.point([parts[t][:, side:] for t, _, side in self._at])

    def put(self, message: Tensor, *, keep: bool) -> None:
        """Puts them into the message ``[s]``; if the rests are wanted, nothing is left."""
        round_many(message, self._sent, self._received, 1.0)
        if keep:
            torch._foreach_zero_(list(self._sent.xs))

    def take(self, message: Tensor) -> None:
        """Sets the means to what the message ``[s]`` says."""
        widen_many(message, self._received, self._means)


class Kind:
    """The matrices whose factors have the same side, all of m or all of l rows.

    Args:
        at: which of all tensors they are. sides: m, l and r of each. sizes: numbers of each tensor, which may go on behind the
            matrix. turned: whether their factors have l rows. narrow: whether they are narrower than float32. streams: of
            what is drawn for their bases; may be empty.

    factors: of the matrices. spans: the same with s and the factor's side in the place of m and l: bases are its lefts.
    tails: None if no tensor goes on. whole_xs, whole_means, whole_received: of the tensors with their tails.
    drawn: what is drawn for each basis, ``[s, r]``; None if nothing is. successors: of states like the factors; unused where
        they are not kept here.
    """

    def __init__(
        self,
        at: Sequence[int],
        sides: Sequence[Sides],
        sizes: Sequence[int],
        device: torch.device,
        *,
        turned: bool,
        narrow: bool,
        streams: Sequence[Stream] = (),
    ):
        self.at, self.turned = list(at), turned
        self.factors = Factors(sides, begins([r * m for m, _, r in sides])[:-1], device)
        spans = [(of[1 - turned], of[turned], of[2]) for of in sides]
        self.spans = Factors(spans, begins([r * s for s, _, r in spans])[:-1], device)
        numbers = [m * l for m, l, _ in sides]
        self.matrices, self.means = (TensorList(numbers, (), (), device) for _ in range(2))
        widths = [side * r for _, side, r in spans]
        self.received, self.successors = (TensorList(widths, (), (), device) for _ in range(2))
        self.tails = Tails(numbers, widths, sizes, device) if list(sizes) != numbers else None
        self.whole_xs, self.whole_means, self.whole_received = self.matrices, self.means, self.received
        if self.tails is not None:
            sent = [n - number + wire for n, number, wire in zip(sizes, numbers, widths, strict=True)]
            self.whole_xs, self.whole_means = (TensorList(sizes, (), (), device) for _ in range(2))
            self.whole_received = TensorList(sent, (), (), device)
        self.olds = TensorList([s * r for s, _, r in spans], (), (), device)
        self.drawn = TensorList(self.olds.sizes, (), streams, device) if streams else None
        self.all = torch.ones(len(self.at), dtype=torch.bool, device=device)
        self.narrow = NarrowMatrices(sizes, device) if narrow else None
        counts = host_int64([s * r for s, _, r in spans])
        roots = [math.sqrt(s) for s, _, _ in spans]
        self.up, self.down = (
            to_device(torch.tensor(scales, dtype=torch.float32, device="cpu").repeat_interleave(counts), device)
            for scales in (roots, [1 / root for root in roots])
        )

    def point(
        self, xs: Sequence[Tensor], means: Sequence[Tensor], parts: Sequence[Tensor], olds: Sequence[Tensor]
    ) -> bool:
        """From now on these are the tensors, rooms for their means, their parts of the message and what spans their bases, all
        ``[1, n]``; see :meth:`TensorList.point`.
        """
        if self.tails is not None:
            there = self.tails.point(xs, means, parts) and self.whole_xs.point(xs) and self.whole_means.point(means)
            if not there or not self.whole_received.point(parts):
                return False
            xs, means, parts = (
                [row[:, :n] for row, n in zip(rows, each.sizes, strict=True)]
                for rows, each in ((xs, self.matrices), (means, self.means), (parts, self.received))
            )
        there = self.matrices.point(xs, None, means) and self.means.point(means)
        return there and self.olds.point(olds) and self.received.point(parts)

    def pair(self, factors: Tensor, bases: Tensor) -> tuple[Tensor, Tensor]:
        """The left ones of them ``[s]``, and the right ones."""
        return (bases, factors) if self.turned else (factors, bases)


class TurnedPlan:
    """Plan of a bucket of transposed matrices: what stays the same at every step.

    Args:
        sides: of each tensor; None for what travels as it is. sizes: numbers of each. turned: of each matrix, whether its
            factor is the one that has l rows. device: of all of them. narrow: whether they are narrower than float32, and all
            are matrices. orthonormal: whether bases are not only spanned by what is given for them, but are that itself.
            streams: of each matrix, what is drawn for its basis; may be empty. of: which of the exchange's tensors these are;
            by default all.
    """

    def __init__(
        self,
        sides: Sequence[Sides | None],
        sizes: Sequence[int],
        turned: Sequence[bool],
        device: torch.device,
        *,
        narrow: bool,
        orthonormal: bool = False,
        streams: Sequence[Stream] = (),
        of: Sequence[int] | None = None,
    ):
        self.orthonormal = orthonormal
        ways = iter(turned)
        sent = [
            size if of is None else of[2] * of[next(ways)] + size - of[0] * of[1]
            for of, size in zip(sides, sizes, strict=True)
        ]
        self.places, self.parts = begins(sent), Parts(tuple(range(len(sides)) if of is None else of), tuple(sent))
        self.dense = DenseTensors(sizes, [i for i, of in enumerate(sides) if of is None], self.places, device)
        self.at = [i for i, of in enumerate(sides) if of is not None]
        self.kinds = []
        for turn in (False, True):
            at = [i for i, way in zip(self.at, turned, strict=True) if way is turn]
            if at:
                shapes = [of for i, of in enumerate(sides) if of is not None and i in set(at)]
                numbers, drawn = (
                    [sizes[i] for i in at],
                    [s for i, s in zip(self.at, streams, strict=False) if i in set(at)],
                )
                self.kinds.append(Kind(at, shapes, numbers, device, turned=turn, narrow=narrow, streams=drawn))


class TurnedBucket:
    """A step of T tensors; each method is called once, in this order.

    Args:
        plan: for tensors of their sizes. xs: the tensors, of which the matrices become the rests, if they are wanted.
        given: the tensors as they came, which are others if they are narrow. olds: of each matrix the factor, ``[s, r]``, that
            spans its basis. peers: who exchanges them.
    """

    def __init__(
        self,
        plan: TurnedPlan,
        xs: Sequence[Tensor],
        given: Sequence[Tensor],
        olds: Sequence[Tensor],
        peers: Peers,
        workspace: Workspace,
    ):
        self._plan, self._xs, self._given, self._peers = plan, xs, given, peers
        self._olds = dict(zip(plan.at, olds, strict=True))
        self._keep = peers.like.lent.keep_rest
        self._means = xs if peers.spares is None else peers.spares

        def take(size: int) -> Tensor:
            return workspace.take(size, torch.float32, xs[0].device)

        self._message = take(plan.places[-1])
        self._wide = [take(kind.spans.lefts[-1]) for kind in plan.kinds]
        self._narrow = [take(kind.spans.lefts[-1]) for kind in plan.kinds]
        self._factors = [take(kind.spans.rights[-1]) for kind in plan.kinds]

    def point(self) -> bool:
        """True if kernels know where all of this is: see :meth:`TensorList.point`."""
        there = self._plan.dense.point(self._xs, self._means, self._message)
        for kind in self._plan.kinds:
            if kind.narrow is not None:
                there = there and kind.narrow.point(rows_of(self._given, kind.at), rows_of(self._xs, kind.at))
            olds, parts = rows_of([self._olds[i] for i in kind.at]), [self._part(i)[None] for i in kind.at]
            there = there and kind.point(rows_of(self._xs, kind.at), rows_of(self._means, kind.at), parts, olds)
        return there

    def sum_factors(self) -> Exchange[None]:
        """The mean of each matrix's factor under the basis that its other factor spans."""
        message = self._message
        for kind, wide, narrow, factors in self._kinds():
            self._project(kind, wide, narrow, factors)
            if self._keep:
                left, right = kind.pair(factors, wide)
                add_low_rank_many(left, kind.matrices, kind.factors, right, -1.0)
            finite = finite_many(kind.all, kind.whole_xs)  # what is left of an inf or NaN is one
            if kind.tails is not None:
                kind.tails.put(message, keep=self._keep)
            poison_many(finite, kind.whole_received)
        yield from self._sum()

    def _project(self, kind: Kind, wide: Tensor, narrow: Tensor, factors: Tensor) -> None:
        """Puts each matrix's factor, ``factors [s]``, into the message."""
        self._widen(kind)
        self._make_bases(kind, wide, narrow)
        if kind.turned:
            project_columns_many(factors, kind.matrices, kind.factors, narrow)
        else:
            project_rows_many(factors, kind.matrices, kind.factors, narrow)
        scatter_rows_many(factors, kind.received, kind.spans, right=True)

    def _widen(self, kind: Kind) -> None:
        """Puts what is narrower than float32 into its rooms."""
        if kind.narrow is not None:
            kind.narrow.widen()

    def _make_bases(self, kind: Kind, wide: Tensor, narrow: Tensor) -> None:
        """Sets ``narrow [s]`` to what matrices are multiplied with, and ``wide [s]`` to what restores them from factors."""
        gather_rows_many(wide, kind.olds, kind.spans, right=False)
        if not self._plan.orthonormal:
            orthonormalize_many(wide, wide, kind.spans)
        torch.mul(wide, kind.down, out=narrow)
        wide.mul_(kind.up)  # so that a product neither overflows nor vanishes

    def _sum(self) -> Exchange[None]:
        """The mean of the message, which has the factors; what travels as it is is put into it here."""
        plan, message = self._plan, self._message
        plan.dense.put(message, keep=self._keep)
        put_answer((yield AllReduce(message, "mean", donate=True, parts=plan.parts)), message)

    def restore(self, *, checked: bool = False) -> tuple[list[Exchanged[None]], list[Tensor]]:
        """The means and what is left of each tensor; and the mean factor of each matrix, of rows of r numbers. ``checked``: as
        for :meth:`DenseTensors.results`.
        """
        plan, xs = self._plan, self._xs
        results: dict[int, Any] = plan.dense.results(self._message, xs, self._means, keep=self._keep, checked=checked)
        self._finite: list[Tensor] = []  # of each kind
        for kind, wide, _, factors in self._kinds():
            finite = finite_many(self._fine(kind), kind.whole_received)
            gather_rows_many(factors, kind.received, kind.spans, right=True)
            left, right = kind.pair(factors, wide)
            split_low_rank_many(left, kind.matrices, kind.factors, None, right)
            if kind.tails is not None:
                kind.tails.take(self._message)
            finite = finite_many(finite, kind.whole_means)
            if kind.narrow is None:
                poison_many(finite, kind.whole_means)
            else:
                finite = kind.narrow.narrow(finite, kind.whole_means)
            self._finite.append(finite)
            results.update(self._results(kind, finite))
        return [results[i] for i in range(len(xs))], self._received()

    def _fine(self, kind: Kind) -> Tensor:
        """Mask of the matrices of a kind that are finite, as far as was known before their factors came."""
        return kind.all

    def _results(self, kind: Kind, finite: Tensor) -> dict[int, Exchanged[Any]]:
        """The results of the matrices of a kind, which are ``finite [T]``, by their numbers."""
        means, rests = self._means if kind.narrow is None else self._given, self._xs if self._keep else None
        flags = zip(kind.at, finite.unbind(0), strict=True)
        return {i: Exchanged(means[i], None if rests is None else rests[i], None, flag) for i, flag in flags}

    def _received(self) -> list[Tensor]:
        """The factor of each matrix ``[side, r]`` in the message."""
        sides = {i: of for kind in self._plan.kinds for i, of in zip(kind.at, kind.spans.sides, strict=True)}
        return [self._part(i)[: sides[i][1] * sides[i][2]].view(sides[i][1:]) for i in self._plan.at]

    def _kinds(self) -> Iterator[tuple[Kind, Tensor, Tensor, Tensor]]:
        return zip(self._plan.kinds, self._wide, self._narrow, self._factors, strict=True)

    def _part(self, i: int) -> Tensor:
        """The part of the message that belongs to tensor i, flat."""
        return self._message[self._plan.places[i] : self._plan.places[i + 1]]


def open_turned(
    owner: object,
    sides: Sequence[Sides | None],
    turned: Sequence[bool],
    xs: Sequence[Tensor],
    olds: Sequence[Tensor],
    peers: Sequence[Peer],
    *,
    orthonormal: bool = False,
) -> TurnedBucket | None:
    """As :func:`grace.methods.common.factor_bucket.open_factors`. ``turned``: of each matrix, which factor travels;
    ``olds``: the other one, as rows of r numbers; with ``orthonormal`` it is the basis itself. Tensors may go on behind their
    matrices.
    """
    rooms = rooms_of(sides, xs, olds, peers)
    if rooms is None:
        return None
    bucket_plan = find_plan(TurnedBucket, owner, sides, turned, xs, rooms, peers, orthonormal=orthonormal)
    if bucket_plan is None:
        return None
    workspace, place, plan = bucket_plan
    bucket = TurnedBucket(plan, rooms, xs, olds, Peers.of(peers), workspace)
    if not bucket.point():
        return None
    workspace.keep(*place, plan)
    return bucket


def rooms_of(
    sides: Sequence[Sides | None], xs: Sequence[Tensor], olds: Sequence[Tensor], peers: Sequence[Peer]
) -> Sequence[Tensor] | None:
    """As :func:`rooms_for` of these tensors, of any shapes; None also where kernels for many tensors cannot take them, or the
    factors ``olds``.
    """
    if not isinstance(peers, Peers) or not all(map(is_plain, olds)):
        return None
    rooms = rooms_for(xs, None not in sides, peers)
    return None if rooms is None or not may_open(rooms, peers) else rooms


def find_plan(
    bucket: type[TurnedBucket],
    owner: object,
    sides: Sequence[Sides | None],
    turned: Sequence[bool],
    xs: Sequence[Tensor],
    rooms: Sequence[Tensor],
    peers: Sequence[Peer],
    *,
    orthonormal: bool = False,
    drawn_as: str | None = None,
    of: Sequence[int] | None = None,
) -> tuple[Workspace, tuple[Hashable, Hashable], TurnedPlan] | None:
    """(where plans are kept, this one's key and way there, the plan) of a bucket of this kind; None where it would have to be
    made while work is captured. ``xs``, ``rooms``: of any shapes, as in :class:`TurnedBucket`; ``drawn_as``: the name of the
    method whose shared streams draw what is drawn for bases; others as in :class:`TurnedPlan`.
    """
    whose = Peers.of(peers)
    workspace, sizes, device = whose.like.lent.workspace, [x.numel() for x in xs], xs[0].device
    assert workspace is not None
    key = (bucket, owner, device, xs[0].dtype, rooms is xs, tuple(sizes), whose.names, whose.like.seed, drawn_as)
    way = (tuple(sides), tuple(turned), of and tuple(of))
    plan: TurnedPlan | None = workspace.find(key, way)
    if plan is None:
        if capturing():
            return None
        drawn = [i for i, of in enumerate(sides) if of is not None] if drawn_as else []
        streams = [whose[i].shared(drawn_as or "") for i in drawn]
        narrow = rooms is not xs
        plan = TurnedPlan(sides, sizes, turned, device, narrow=narrow, orthonormal=orthonormal, streams=streams, of=of)
    return workspace, (key, way), plan


def exchange_dense(owner: object, xs: Sequence[Tensor], peers: Peers) -> Exchange[list[Exchanged[Any]]]:
    """The results of tensors, of any shapes, that travel as they are, by few launches where kernels take them."""
    nothing = [None] * len(xs)
    bucket = open_turned(owner, nothing, (), xs, (), peers) if peers.like.lent.keep_rest and xs else None
    if bucket is None:
        return (yield from DENSE.exchange_all(xs, nothing, peers))
    yield from bucket.sum_factors()
    return bucket.restore()[0]
