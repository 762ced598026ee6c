"""The matrices of a bucket of which one factor travels, and what travels uncompressed beside them: one all-reduce.

Letters: M is m x l; its factor has one of these sides, the basis the other one. All have the bits of single exchanges.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from grace.collectives import Exchange
from grace.compute import backends
from grace.compute.host import host_int64
from grace.contract.method import Exchanged
from grace.contract.peer import Peer, Peers
from grace.contract.workspace import Workspace
from grace.kernels import all_finite, product_fits
from grace.kernels.finite.many import Finiteness
from grace.kernels.low_rank.grouped import begins
from grace.kernels.low_rank.many import LowRankMany
from grace.methods.common.low_rank_bucket import (
    HALF,
    LowRankBucket,
    LowRankPlan,
    addresses,
    may_open,
)
from grace.methods.common.matrices import Sides


class ProjectionPlan(LowRankPlan):
    """Plan of a bucket of projections: what stays the same at every step.

    Args:
        sides, sizes: as in :class:`LowRankPlan`.
        turned: of each matrix, whether its factor is the one that has l rows.
    """

    def __init__(self, sides: Sequence[Sides | None], sizes: Sequence[int], turned: Sequence[bool]):
        ways = iter(turned)
        sent = [size if of is None else of[2] * of[next(ways)] for of, size in zip(sides, sizes, strict=True)]
        LowRankPlan.__init__(self, sides, sizes, sent)
        self.turned = list(turned)
        self.groups = [[t for t, way in enumerate(turned) if way is turn] for turn in (False, True)]
        self.ways = [LowRankMany([self.sides[t] for t in group]) if group else None for group in self.groups]
        shapes = [(of[1 - way], of[way], of[2]) for of, way in zip(self.sides, turned, strict=True)]
        self.orthonormal = LowRankMany(shapes)
        self.bases = begins([s * r for s, _, r in shapes])
        self.factors = begins([side * r for _, side, r in shapes])
        self.shapes = shapes
        counts = host_int64([s * r for s, _, r in shapes])
        roots = [math.sqrt(s) for s, _, _ in shapes]
        self.up = torch.tensor(roots, dtype=torch.float32, device="cpu").repeat_interleave(counts)
        self.down = torch.tensor([1 / root for root in roots], dtype=torch.float32, device="cpu").repeat_interleave(
            counts
        )
        self.finite = Finiteness([m * l for m, l, _ in self.sides])


class ProjectionBucket(LowRankBucket):
    """A step of T tensors; each method is called once, in this order.

    Args:
        plan: for tensors of their sizes. xs: the tensors, of which the matrices become the rests, if they are wanted.
        olds: of each matrix the factor, of rows of r numbers, that spans its basis. peers: who exchanges them.
    """

    def __init__(
        self, plan: ProjectionPlan, xs: Sequence[Tensor], olds: Sequence[Tensor], peers: Peers, workspace: Workspace
    ):
        LowRankBucket.__init__(self, plan, xs, peers, workspace)
        self._ways, self._olds = plan, olds

    def sum_factors(self) -> Exchange[None]:
        """The mean of each matrix's factor under the basis that its other factor spans."""
        plan = self._ways
        bases = self._take(plan.bases[-1])
        for part, old, (s, _, r) in zip(self._cut(bases, plan.bases), self._olds, plan.shapes, strict=True):
            part.view(r, s).copy_(old.mT)
        places = addresses(bases, plan.bases)[:-1]
        plan.orthonormal.orthonormalize(places, places)
        narrow = torch.mul(bases, plan.down, out=self._take(plan.bases[-1]))
        self._wide = bases.mul_(plan.up)  # so that a product neither overflows nor vanishes
        fine = plan.finite.run(self._matrices)
        for t, good in enumerate(fine):
            if not good:
                self._xs[plan.matrices[t]].zero_()
        factors = self._take(plan.factors[-1])
        self._project(addresses(narrow, plan.bases), addresses(factors, plan.factors))
        message = self._take(plan.places[-1])
        parts = self._cut(factors, plan.factors)
        for i, part, (_, side, r) in zip(plan.matrices, parts, plan.shapes, strict=True):
            self._part(message, i).view(side, r).copy_(part.view(r, side).mT)
        if self._keep:
            self._add(self._matrices, factors, -1.0)
            if not self._certainly(factors):
                fine = [good and self._fits(t, part) for t, (part, good) in enumerate(zip(parts, fine, strict=True))]
        for i, good in zip(plan.matrices, fine, strict=True):
            if not good:
                self._part(message, i).fill_(math.nan)
        yield from self._sum_first(message)

    def restore(self) -> tuple[list[Exchanged[None]], list[Tensor]]:
        """The means and what is left of each tensor; and the mean factor of each matrix, of rows of r numbers."""
        plan, xs = self._ways, self._xs
        rows = self._take(plan.factors[-1])
        means = [
            self._part(self._first, i).view(side, r) for i, (_, side, r) in zip(plan.matrices, plan.shapes, strict=True)
        ]
        for part, mean, (_, side, r) in zip(self._cut(rows, plan.factors), means, plan.shapes, strict=True):
            part.view(r, side).copy_(mean.mT)
        outs = [self._means[i] for i in plan.matrices]
        torch._foreach_zero_(outs)
        at = [out.data_ptr() for out in outs]
        self._add(at, rows, 1.0)
        for i, good in zip(plan.matrices, plan.finite.run(at), strict=True):
            self._fine[i] = self._fine[i] and good
        answers, results = self._return_dense(), []
        for i, x in enumerate(xs):
            if self._fine[i]:
                results.append(Exchanged(answers.get(i, self._means[i]), x if self._keep else None, None))
            else:
                results.append(Exchanged.poisoned(x, None))
        return results, means

    def _project(self, bases: list[int], outs: list[int]) -> None:
        for turned, (group, kernels) in enumerate(zip(self._ways.groups, self._ways.ways, strict=True)):
            if kernels is not None:
                project = kernels.project_columns if turned else kernels.project_rows
                project(*([each[t] for t in group] for each in (self._matrices, bases, outs)))

    def _add(self, outs: list[int], factors: Tensor, scale: float) -> None:
        """Adds ``scale`` times the products of the factors ``[r, side]``, one after the other, and the bases to ``outs``."""
        plan = self._ways
        bases, there = addresses(self._wide, plan.bases), addresses(factors, plan.factors)
        for turned, (group, kernels) in enumerate(zip(plan.groups, plan.ways, strict=True)):
            if kernels is not None:
                left, right = (bases, there) if turned else (there, bases)
                kernels.add([outs[t] for t in group], [left[t] for t in group], [right[t] for t in group], scale)

    def _certainly(self, factors: Tensor) -> bool:
        """True if all products of factors, of any shapes, and bases are certainly at most half the largest float32."""
        most = float(factors.abs().max()) * float(self._wide.abs().max())
        return most * 1.01 * max(r for _, _, r in self._ways.shapes) <= HALF

    def _fits(self, t: int, factor: Tensor) -> bool:
        """True if what is left of matrix t without the product of its flat factor and the basis counts as finite."""
        s, side, r = self._ways.shapes[t]
        basis = self._wide[self._ways.bases[t] : self._ways.bases[t + 1]].view(r, s)
        fits = product_fits(factor.view(r, side), basis)
        return bool(fits) or bool(all_finite(self._xs[self._ways.matrices[t]]))

    def _cut(self, flat: Tensor, places: list[int]) -> list[Tensor]:
        return [flat[begin:end] for begin, end in itertools.pairwise(places)]


def open_projections(
    owner: object,
    sides: Sequence[Sides | None],
    turned: Sequence[bool],
    xs: Sequence[Tensor],
    olds: Sequence[Tensor],
    peers: Sequence[Peer],
) -> ProjectionBucket | None:
    """As :func:`grace.methods.common.low_rank_bucket.open_bucket`. ``turned``: of each matrix, which factor travels;
    ``olds``: the other one, as rows of r numbers.
    """
    if not isinstance(peers, Peers) or not may_open(sides, xs, peers):
        return None
    workspace = peers.like.lent.workspace
    assert workspace is not None
    sizes = [x.numel() for x in xs]
    key, way = (ProjectionBucket, owner, backends.backend(), tuple(sides), tuple(sizes)), tuple(turned)
    plan: ProjectionPlan = workspace.find(key, way) or ProjectionPlan(sides, sizes, turned)
    workspace.keep(key, way, plan)
    return ProjectionBucket(plan, xs, olds, peers, workspace)
