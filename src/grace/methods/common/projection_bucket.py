"""The matrices of a bucket of which one factor travels, and what travels uncompressed beside them: one all-reduce.

Letters: M is m x l; its factor has one of these sides, the basis, of s rows, the other one. Matrices whose factor has l rows
are turned; those of a kind go together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grace.collectives import Exchange
from grace.contract.method import Exchanged
from grace.contract.peer import Peers
from grace.contract.workspace import Workspace
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
from grace.methods.common.low_rank_bucket import LowRankBucket, LowRankPlan, OtherNumbers, find_plan, only
from grace.methods.common.matrices import Sides
from grace.random import Stream


class Remainders:
    """The numbers behind the matrices in their tensors, which travel uncompressed behind the factors.

    Args:
        ends: how many numbers precede those of each tensor. sides: likewise, in the message. sizes: numbers of each tensor.
    """

    def __init__(self, ends: Sequence[int], sides: Sequence[int], sizes: Sequence[int], device: torch.device):
        self._at = [(t, end, side) for t, (end, side, n) in enumerate(zip(ends, sides, sizes, strict=True)) if end < n]
        tails = [sizes[t] - end for t, end, _ in self._at]
        self._sent, self._received, self._means = (TensorList(tails, (), (), device) for _ in range(3))

    def point(self, xs: Sequence[Tensor], means: Sequence[Tensor], parts: Sequence[Tensor]) -> None:
        """From now on these are the tensors, rooms for their means, and their parts of the message, ``[n]`` each, unless these
        are where they were.
        """
        self._sent.point([xs[t][end:] for t, end, _ in self._at])
        self._means.point([means[t][end:] for t, end, _ in self._at])
        if parts:
            self._received.point([parts[t][side:] for t, _, side in self._at])

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
            matrix. turned: whether their factors have l rows. dtype: of the tensors. streams: of what is drawn for their
            bases; may be empty.

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
        dtype: torch.dtype,
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
        self.tails = Remainders(numbers, widths, sizes, device) if list(sizes) != numbers else None
        self.whole_xs, self.whole_means, self.whole_received = self.matrices, self.means, self.received
        if self.tails is not None:
            sent = [n - number + wire for n, number, wire in zip(sizes, numbers, widths, strict=True)]
            self.whole_xs, self.whole_means = (TensorList(sizes, (), (), device) for _ in range(2))
            self.whole_received = TensorList(sent, (), (), device)
        self.olds = TensorList([s * r for s, _, r in spans], (), (), device)
        self.drawn = TensorList(self.olds.sizes, (), streams, device) if streams else None
        self.others = None if dtype is torch.float32 else OtherNumbers(sizes, device)

    @property
    def roots(self) -> tuple[Tensor, Tensor]:
        """float32 ``[s]`` that lie as the bases do: the root of each one's s, and its inverse."""
        return self.spans.once("roots", self._make_roots)

    def _make_roots(self) -> tuple[Tensor, Tensor]:
        def spread(scales: Sequence[float]) -> Tensor:
            device = self.spans.device
            each = zip(self.spans.sides, scales, strict=True)
            return torch.cat(
                [torch.full((s * r,), scale, dtype=torch.float32, device=device) for (s, _, r), scale in each]
            )

        roots = [math.sqrt(s) for s, _, _ in self.spans.sides]
        return spread(roots), spread([1 / root for root in roots])

    def point(
        self, xs: Sequence[Tensor], means: Sequence[Tensor], parts: Sequence[Tensor], olds: Sequence[Tensor]
    ) -> None:
        """From now on these are the tensors, rooms for their means, their parts of the message, unless these are where they
        were, and what spans their bases, of any shapes; see :meth:`TensorList.point`.
        """
        if self.tails is not None:
            xs, means = ([x.view(-1) for x in each] for each in (xs, means))
            self.tails.point(xs, means, parts)
            self.whole_xs.point(xs)
            self.whole_means.point(means)
            if parts:
                self.whole_received.point(parts)
            xs, means, parts = (
                [row[:n] for row, n in zip(rows, each.sizes, strict=bool(rows))]
                for rows, each in ((xs, self.matrices), (means, self.means), (parts, self.received))
            )
        self.matrices.point(xs, None, means)
        self.means.point(means)
        self.olds.point(olds)
        if parts:
            self.received.point(parts)

    def pair(self, factors: Tensor, bases: Tensor) -> tuple[Tensor, Tensor]:
        """The left ones of them ``[s]``, and the right ones."""
        return (bases, factors) if self.turned else (factors, bases)


class ProjectionPlan(LowRankPlan):
    """Plan of a bucket of projections: what stays the same at every step.

    Args:
        sides, sizes, device, of: as in :class:`LowRankPlan`; tensors may go on behind their matrices. turned: of each matrix,
            whether its factor is the one that has l rows. dtype: of the tensors. orthonormal: whether bases are not only
            spanned by what is given for them, but are that itself. streams: of each matrix, what is drawn for its basis; may
            be empty.
    """

    def __init__(
        self,
        sides: Sequence[Sides | None],
        sizes: Sequence[int],
        turned: Sequence[bool],
        device: torch.device,
        dtype: torch.dtype,
        *,
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
        LowRankPlan.__init__(self, sides, sizes, sent, device, of)
        self.kinds = []
        for turn in (False, True):
            own = [t for t, way in enumerate(turned) if way is turn]
            if own:
                at, drawn = only(self.at, own), only(streams, own) if streams else []
                shapes, numbers = only(self.sides, own), only(sizes, at)
                self.kinds.append(Kind(at, shapes, numbers, device, turned=turn, dtype=dtype, streams=drawn))
        spans = [kind.spans for kind in self.kinds]
        self.furnish([n for each in spans for n in (each.lefts[-1], each.lefts[-1], each.rights[-1])])


class ProjectionBucket(LowRankBucket):
    """A step of T tensors: :meth:`sum_factors`, then :meth:`restore`.

    Args:
        plan, xs, peers: as in :class:`LowRankBucket`. olds: of each matrix the factor, ``[s, r]``, that spans its basis.
        rooms: where xs are already float32; None: nowhere yet, or they are.
    """

    def __init__(
        self,
        plan: ProjectionPlan,
        xs: Sequence[Tensor],
        olds: Sequence[Tensor],
        peers: Peers,
        workspace: Workspace,
        rooms: Sequence[Tensor] | None = None,
    ):
        LowRankBucket.__init__(self, plan, xs, peers, workspace, rooms)
        self.plan = plan
        held = dict(zip(plan.at, olds, strict=True))
        for kind in plan.kinds:
            xs, means = only(self.xs, kind.at), only(self.means, kind.at)
            pieces = only(plan.pieces, kind.at) if self.moved else ()
            kind.point(xs, means, pieces, [held[i] for i in kind.at])

    def sum_factors(self) -> Exchange[None]:
        """The mean of each matrix's factor under the basis that its other factor spans."""
        for kind in self.plan.kinds:
            self.project(kind)
            if self.keep:
                wide, _, factors = self.rooms_of(kind)
                left, right = kind.pair(factors, wide)
                add_low_rank_many(left, kind.matrices, kind.factors, right, -1.0)
            finite = finite_many(kind.whole_xs.all_set, kind.whole_xs)  # what is left of an inf or NaN is one
            if kind.tails is not None:
                kind.tails.put(self.message, keep=self.keep)
            poison_many(finite, kind.whole_received)
        yield from self.sum_message()

    def project(self, kind: Kind) -> None:
        """Puts each matrix's factor into the message."""
        wide, narrow, factors = self.rooms_of(kind)
        self.widen(kind.others, kind.at)
        self.make_bases(kind, wide, narrow)
        if kind.turned:
            project_columns_many(factors, kind.matrices, kind.factors, narrow)
        else:
            project_rows_many(factors, kind.matrices, kind.factors, narrow)
        scatter_rows_many(factors, kind.received, kind.spans, right=True)

    def make_bases(self, kind: Kind, wide: Tensor, narrow: Tensor) -> None:
        """Sets ``narrow [s]`` to what matrices are multiplied with, and ``wide [s]`` to what restores them from factors."""
        gather_rows_many(wide, kind.olds, kind.spans, right=False)
        if not self.plan.orthonormal:
            orthonormalize_many(wide, wide, kind.spans)
        up, down = kind.roots
        torch.mul(wide, down, out=narrow)
        wide.mul_(up)  # so that a product neither overflows nor vanishes

    def restore(self, *, checked: bool = False, among: Tensor | None = None) -> list[Exchanged[Any]]:
        """The means and what is left of each tensor. ``checked``: as for :meth:`DenseTensors.results`. ``among``: ``[T]``
        bool, which matrices may be finite; None: all.
        """
        results = self.plan.dense.results(self.message, self.xs, self.means, keep=self.keep, checked=checked)
        self.finite: list[Tensor] = []  # of each kind
        for kind in self.plan.kinds:
            wide, _, factors = self.rooms_of(kind)
            finite = finite_many(kind.received.all_set if among is None else among, kind.whole_received)
            gather_rows_many(factors, kind.received, kind.spans, right=True)
            left, right = kind.pair(factors, wide)
            split_low_rank_many(left, kind.matrices, kind.factors, None, right)
            if kind.tails is not None:
                kind.tails.take(self.message)
            finite = self.settle(finite_many(finite, kind.whole_means), kind.others, kind.whole_means)
            self.finite.append(finite)
            results.update(self.results_of(kind.at, finite))
        return [results[i] for i in range(len(self.xs))]

    def received(self) -> list[Tensor]:
        """The mean factor of each matrix, ``[side, r]``, in the message."""
        shapes = {i: of[1:] for kind in self.plan.kinds for i, of in zip(kind.at, kind.spans.sides, strict=True)}
        return [self.plan.pieces[i][: math.prod(shapes[i])].view(shapes[i]) for i in self.plan.at]

    def rooms_of(self, kind: Kind) -> tuple[Tensor, Tensor, Tensor]:
        """Rooms for a kind's bases, wide and narrow, and for its factors, side by side."""
        k = 3 * self.plan.kinds.index(kind)
        wide, narrow, factors = self.plan.rooms[k : k + 3]
        return wide, narrow, factors


def find_projection_plan(
    owner: object,
    sides: Sequence[Sides | None],
    turned: Sequence[bool],
    xs: Sequence[Tensor],
    peers: Peers,
    workspace: Workspace,
    *,
    orthonormal: bool = False,
    drawn_as: str | None = None,
    of: Sequence[int] | None = None,
) -> ProjectionPlan:
    """The plan of these tensors, whose matrices have these sides. ``owner``: whose it is, hashable. ``drawn_as``: the name of
    the method whose shared streams draw what is drawn for bases; others as in :class:`ProjectionPlan`.
    """
    device, dtype, sizes = xs[0].device, xs[0].dtype, tuple(map(Tensor.numel, xs))

    def make() -> ProjectionPlan:
        drawn = [i for i, of in enumerate(sides) if of is not None] if drawn_as else []
        streams = [peers[i].shared(drawn_as or "") for i in drawn]
        return ProjectionPlan(sides, sizes, turned, device, dtype, orthonormal=orthonormal, streams=streams, of=of)

    key = (ProjectionPlan, owner, device, dtype, sizes, peers.names, peers.like.seed, drawn_as)
    return find_plan(workspace, key, (tuple(sides), tuple(turned), of and tuple(of)), make)
