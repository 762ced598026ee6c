"""The matrices of a bucket, and what travels uncompressed beside them: one call of each kernel, one all-reduce per round.

Letters: M is m x l; factors are held as rows, p ``[r, m]`` and q ``[r, l]``. All have the bits of single exchanges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from grace.collectives import AllReduce, Exchange, Parts
from grace.compute import backends, native
from grace.contract.loan import succeed
from grace.contract.method import Exchanged
from grace.contract.peer import Peer, Peers
from grace.contract.workspace import Workspace
from grace.flags.finite import on_host
from grace.kernels import add_low_rank_, all_finite, product_fits, unit_rows
from grace.kernels.call_table import possible
from grace.kernels.finite.many import Sums
from grace.kernels.low_rank.grouped import begins
from grace.kernels.low_rank.many import LowRankMany
from grace.methods.common.matrices import Sides, are_plain

S = TypeVar("S")
HALF = torch.finfo(torch.float32).max / 2


class LowRankPlan:
    """Plan of a bucket of low-rank factors: what stays the same at every step.

    Args:
        sides: of each tensor; None for what travels as it is. sizes: numbers of each.
        sent: how many numbers of each travel first.
    """

    def __init__(self, sides: Sequence[Sides | None], sizes: Sequence[int], sent: Sequence[int]):
        self.matrices = [i for i, of in enumerate(sides) if of is not None]
        self.dense = [i for i, of in enumerate(sides) if of is None]
        self.sides = [of for of in sides if of is not None]
        self.kernels = LowRankMany(self.sides)
        self.into = Sums([sizes[i] for i in self.dense], memory=False)
        self.back = Sums([sizes[i] for i in self.dense], memory=True)
        self.zeros = torch.zeros(max((sizes[i] for i in self.dense), default=0), dtype=torch.float32, device="cpu")
        self.parts, self.places = Parts(tuple(range(len(sides))), tuple(sent)), begins(sent)
        self.rights = [r * l for _, l, r in self.sides]
        self.lefts = begins([r * m for m, _, r in self.sides])
        self.owns = begins(self.rights)
        lengths = sorted({l for _, l, _ in self.sides})
        self.alike = [[t for t, of in enumerate(self.sides) if of[1] == l] for l in lengths]  # whose q are as long


class LowRankBucket:
    """A step of T tensors; each method is called once, in this order.

    Args:
        plan: for tensors of their sizes. xs: the tensors, of which the matrices become the rests, if they are wanted.
        peers: who exchanges them.
    """

    def __init__(self, plan: LowRankPlan, xs: Sequence[Tensor], peers: Peers, workspace: Workspace):
        self._plan, self._xs, self._peers, self._workspace = plan, xs, peers, workspace
        self._keep = peers.like.lent.keep_rest
        self._means = xs if peers.spares is None else peers.spares
        self._at = [x.data_ptr() for x in xs]
        self._matrices = [self._at[i] for i in plan.matrices]
        self._fine = [True] * len(xs)
        self._check_means = False

    def _take(self, size: int) -> Tensor:
        return self._workspace.take(size, torch.float32, self._xs[0].device)

    def sum_left(self, qs: Sequence[Tensor]) -> Exchange[None]:
        """P = the mean of M Q for each matrix, given its Q ``[l, r]``; and the means of what travels as it is."""
        plan = self._plan
        rights, held = [0] * len(qs), []
        for alike in plan.alike:
            rows = unit_rows(torch.cat([qs[t].mT for t in alike]))
            held.append(rows)
            at = native.address("factors", rows, torch.float32, sum(plan.rights[t] for t in alike))
            for t in alike:
                rights[t] = at
                at += 4 * plan.rights[t]
        message = self._take(plan.places[-1])
        places = addresses(message, plan.places)
        plan.kernels.project_rows(self._matrices, rights, [places[i] for i in plan.matrices])
        yield from self._sum_first(message)

    def _sum_first(self, message: Tensor) -> Exchange[None]:
        """The mean of ``message [s]``, which has what is sent of matrices; what travels as it is is put into it here."""
        plan = self._plan
        places = addresses(message, plan.places)
        fine = plan.into.run([self._at[i] for i in plan.dense], 0, [places[i] for i in plan.dense])
        if self._keep and not all(fine):
            for i, good in zip(plan.dense, fine, strict=True):
                if not good:
                    self._part(message, i).fill_(math.nan)
        self._first = (yield AllReduce(message, "mean", donate=True, parts=plan.parts)).contiguous()  # [s]
        if not all_finite(self._first):
            for i in plan.matrices if not self._keep else range(len(self._xs)):
                self._fine[i] = bool(all_finite(self._part(self._first, i)))
        for i in plan.matrices:
            if not self._fine[i]:
                self._part(self._first, i).fill_(0.0)

    def orthonormalize(self) -> None:
        """P = orth(P)."""
        plan = self._plan
        self._left = self._take(plan.lefts[-1])
        places = addresses(self._first, plan.places)
        plan.kernels.orthonormalize([places[i] for i in plan.matrices], addresses(self._left, plan.lefts)[:-1])

    def sum_right(self) -> Exchange[None]:
        """Q = the mean of M^T P for each matrix."""
        plan = self._plan
        self._own = self._take(plan.owns[-1])
        lefts, owns = addresses(self._left, plan.lefts)[:-1], addresses(self._own, plan.owns)[:-1]
        plan.kernels.project_columns(self._matrices, lefts, owns)
        pieces = list(self._own.split_with_sizes(plan.rights))
        if not self._certainly_fit(self._own):
            pieces = [self._checked(t, piece) for t, piece in enumerate(pieces)]
        sent = [t for t, i in enumerate(plan.matrices) if self._fine[i]]
        answers: list[Tensor] = []
        if sent:
            sizes = [plan.rights[t] for t in sent]
            message = torch.cat([pieces[t] for t in sent], out=self._take(sum(sizes)))
            parts = Parts(tuple([plan.matrices[t] for t in sent]), tuple(sizes))
            if len(sent) == 1:
                message = message.view(plan.sides[sent[0]][2], -1)  # as it would travel alone
            answer = (yield AllReduce(message, "mean", donate=True, parts=parts)).contiguous().view(-1)
            answers = list(answer.split_with_sizes(sizes))
            if not self._certainly_fit(answer):
                self._check_means = True
                for t, right in zip(sent, answers, strict=True):
                    self._fine[plan.matrices[t]] = bool(all_finite(right))
        self._rights = pieces  # of those that were not sent nobody asks for a mean
        for t, right in zip(sent, answers, strict=True):
            self._rights[t] = right

    def split(self, states: Sequence[S]) -> list[Exchanged[S | Tensor]]:
        """The means P Q^T, and what is left of each matrix; Q follows the states of the matrices, others stay."""
        plan, xs, means, lent = self._plan, self._xs, self._means, self._peers.like.lent
        rights = [right.data_ptr() for right in self._rights]
        lefts, owns = addresses(self._left, plan.lefts)[:-1], addresses(self._own, plan.owns)[:-1]
        kept = self._matrices if self._keep else None
        plan.kernels.split(kept, lefts, owns, rights, [means[i].data_ptr() for i in plan.matrices])
        after: list[S | Tensor] = list(states)
        for t, i in enumerate(plan.matrices):
            _, l, r = plan.sides[t]
            q = self._rights[t].view(r, l)
            if self._check_means and self._fine[i]:
                self._fine[i] = bool(product_fits(self._left_of(t), q)) or bool(all_finite(means[i]))
            old = states[i]
            assert isinstance(old, Tensor)
            after[i] = succeed(self._fine[i], q.mT, old, lent)
        answers = self._return_dense()
        out: list[Exchanged[S | Tensor]] = []
        for i, x in enumerate(xs):
            if self._fine[i]:
                out.append(Exchanged(answers.get(i, means[i]), x if self._keep else None, after[i]))
            else:
                out.append(Exchanged.poisoned(x, after[i]))
        return out

    def _return_dense(self) -> dict[int, Tensor]:
        """The means of what travels as it is. Nothing is left of it."""
        plan = self._plan
        if not self._keep:
            return {i: self._part(self._first, i).view(self._xs[i].shape) for i in plan.dense}
        places = addresses(self._first, plan.places)
        outs = [self._means[i].data_ptr() for i in plan.dense]
        plan.back.run([places[i] for i in plan.dense], plan.zeros.data_ptr(), outs)  # -0 becomes 0
        if plan.dense:
            torch._foreach_zero_([self._xs[i] for i in plan.dense])
        return {i: self._means[i] for i in plan.dense}

    def _part(self, message: Tensor, i: int) -> Tensor:
        """The part of a message ``[s]`` that belongs to tensor i, flat."""
        return message[self._plan.places[i] : self._plan.places[i + 1]]

    def _left_of(self, t: int) -> Tensor:
        """P of matrix t, ``[r, m]``."""
        return self._left[self._plan.lefts[t] : self._plan.lefts[t + 1]].view(self._plan.sides[t][2], -1)

    def _certainly_fit(self, rights: Tensor) -> bool:
        """True if all products with these right factors, of any shapes, are certainly at most half the largest float32: the
        numbers of a basis are at most 1, but for rounding.
        """
        return float(rights.abs().max()) * 1.01 * max(r for _, _, r in self._plan.sides) <= HALF

    def _checked(self, t: int, own: Tensor) -> Tensor:
        """The flat right factor of matrix t, or NaN if what is left of the matrix is not finite."""
        m, l, r = self._plan.sides[t]
        p, q = self._left_of(t), own.view(r, l)
        if product_fits(p, q):
            return own
        left = self._xs[self._plan.matrices[t]].reshape(m, l).clone()
        add_low_rank_(left, p, q, -1.0)
        return own if all_finite(left) else torch.full_like(own, math.nan)


def open_bucket(
    owner: object, sides: Sequence[Sides | None], xs: Sequence[Tensor], peers: Sequence[Peer]
) -> LowRankBucket | None:
    """A step of these tensors, whose matrices have these sides; None if they cannot be worked on where they are, or none is a
    matrix. ``owner``: whose plan it is, hashable.
    """
    if not isinstance(peers, Peers) or not may_open(sides, xs, peers):
        return None
    workspace = peers.like.lent.workspace
    assert workspace is not None
    sizes = [x.numel() for x in xs]
    key = (LowRankBucket, owner, backends.backend(), tuple(sides), tuple(sizes))
    plan: LowRankPlan | None = workspace.kept.get(key)
    if plan is None:
        sent = [size if of is None else of[2] * of[0] for of, size in zip(sides, sizes, strict=True)]
        plan = workspace.kept[key] = LowRankPlan(sides, sizes, sent)
    return LowRankBucket(plan, xs, peers, workspace)


def may_open(sides: Sequence[Sides | None], xs: Sequence[Tensor], peers: Peers) -> bool:
    """True if there are matrices among these tensors, of any shapes, and all can be worked on where they are."""
    if not (any(sides) and possible() and on_host(xs[0].device) and are_plain(xs, peers)):
        return False
    return all(x.is_cpu for x in (*xs, *(peers.spares or ())))


def addresses(message: Tensor, begins: Sequence[int]) -> list[int]:
    """These places in ``message [s]`` float32."""
    first = message.data_ptr()
    return [first + 4 * begin for begin in begins]
