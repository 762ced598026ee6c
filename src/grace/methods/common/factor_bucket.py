"""The matrices of a bucket on an accelerator, and what travels uncompressed beside them: as many launches as one of each
takes, one all-reduce per round. All have the bits of single exchanges, and nothing here asks the host.

Letters: M is m x l; factors are held as rows, p ``[r, m]`` and q ``[r, l]``. Of T tensors some are matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grace import wire as wires
from grace.collectives import AllReduce, Exchange, Parts
from grace.compute import backends
from grace.contract.method import Exchanged
from grace.contract.peer import Peer, Peers
from grace.contract.workspace import Workspace
from grace.flags.capturing import capturing
from grace.flags.finite import Flag, on_host
from grace.kernels.low_rank.grouped import (
    Factors,
    begins,
    draw_many,
    fit_many,
    orthonormalize_many,
    project_columns_many,
    project_rows_many,
    split_low_rank_many,
    succeed_many,
    unit_rows_many,
)
from grace.kernels.multi_tensor import clear_many, finite_many, round_many, widen_many
from grace.kernels.tensor_list import TensorList, poison_many
from grace.methods.common.matrices import Sides, are_plain, is_plain
from grace.methods.common.narrow_matrices import NarrowMatrices, rooms_for
from grace.random import Stream


class DenseTensors:
    """Tensors of a bucket that travel as they are.

    Args:
        sizes: numbers of all tensors. at: which of them these are. places: where each tensor's part of the message begins.
    """

    def __init__(self, sizes: Sequence[int], at: Sequence[int], places: Sequence[int], device: torch.device):
        self.at, self._places = list(at), places
        self._sent, self._received, self._means = (TensorList([sizes[i] for i in at], (), (), device) for _ in range(3))

    def point(self, xs: Sequence[Tensor], means: Sequence[Tensor], message: Tensor) -> bool:
        """From now on these are all tensors, rooms for their means, and the message ``[s]``; see :meth:`TensorList.point`."""
        parts = [message[self._places[i] : self._places[i + 1]] for i in self.at]
        there = self._sent.point(rows_of(xs, self.at)) and self._means.point(rows_of(means, self.at))
        return there and self._received.point([part[None] for part in parts])

    def put(self, message: Tensor, *, keep: bool) -> None:
        """Puts them into the message ``[s]``. If the rests are wanted: NaN in the place of what is not finite, and nothing is
        left.
        """
        if not self.at:
            return
        finite = round_many(message, self._sent, self._received, 1.0)
        if keep:
            poison_many(finite, self._received)
            torch._foreach_zero_(list(self._sent.xs))

    def results(
        self, message: Tensor, xs: Sequence[Tensor], means: Sequence[Tensor], *, keep: bool, checked: bool = False
    ) -> dict[int, Any]:
        """The results of these, of all tensors ``xs`` of any shapes, by their numbers: as the network summed them, unless the
        rests are wanted. ``checked``: whether these say what is finite, too.
        """
        if not self.at:
            return {}
        if not keep:
            parts = [message[self._places[i] : self._places[i + 1]].view(xs[i].shape) for i in self.at]
            flags: Sequence[Flag] = [True] * len(parts)
            if checked:
                there = torch.ones(len(parts), dtype=torch.bool, device=message.device)
                flags = finite_many(there, self._received).unbind(0)
            each = zip(self.at, parts, flags, strict=True)
            return {i: Exchanged(part, None, None, flag) for i, part, flag in each}
        finite = widen_many(message, self._received, self._means)
        poison_many(finite, self._means)
        return {i: Exchanged(means[i], xs[i], None, flag) for i, flag in zip(self.at, finite.unbind(0), strict=True)}


class FactorPlan:
    """Plan of a bucket of factors: what stays the same at every step.

    Args:
        sides: of each tensor; None for what travels as it is. sizes: numbers of each. device: of all of them. narrow: whether
            they are narrower than float32, and all are matrices. streams: of each matrix, what it is projected with where
            that is drawn; empty where it is not.
    """

    def __init__(
        self,
        sides: Sequence[Sides | None],
        sizes: Sequence[int],
        device: torch.device,
        *,
        narrow: bool,
        streams: Sequence[Stream] = (),
    ):
        sent = [n if of is None else of[2] * of[0] for of, n in zip(sides, sizes, strict=True)]
        self.places, self.parts = begins(sent), Parts(tuple(range(len(sides))), tuple(sent))
        self.dense = DenseTensors(sizes, [i for i, of in enumerate(sides) if of is None], self.places, device)
        self.at = [i for i, of in enumerate(sides) if of is not None]
        self.sides = [of for of in sides if of is not None]
        self.factors = Factors(self.sides, [self.places[i] for i in self.at], device)
        self.matrices, self.means = (TensorList([sizes[i] for i in self.at], (), (), device) for _ in range(2))
        self.received = TensorList([m * r for m, _, r in self.sides], (), (), device)
        rights = [l * r for _, l, r in self.sides]
        self.states = TensorList(rights, (), (), device)
        self.drawn = TensorList(rights, (), streams, device) if streams else None
        self.own_parts = Parts(tuple(self.at), tuple(rights))
        self.all = torch.ones(len(self.at), dtype=torch.bool, device=device)
        self.narrow = NarrowMatrices(sizes, device) if narrow else None


class FactorBucket:
    """A step of T tensors; each method is called once, in this order.

    Args:
        plan: for tensors of their sizes. xs: the tensors, of which the matrices become the rests, if they are wanted.
        given: the tensors as they came, which are others if they are narrow. states: of each matrix ``[l, r]``. peers: who
            exchanges them.
    """

    def __init__(
        self,
        plan: FactorPlan,
        xs: Sequence[Tensor],
        given: Sequence[Tensor],
        states: Sequence[Tensor],
        peers: Peers,
        workspace: Workspace,
    ):
        self._plan, self._xs, self._given, self._peers, self._states = plan, xs, given, peers, states
        self._keep = peers.like.lent.keep_rest
        self._means = xs if peers.spares is None else peers.spares
        self._message, self._left, self._own, self._right = (
            workspace.take(size, torch.float32, xs[0].device)
            for size in (plan.places[-1], plan.factors.lefts[-1], plan.factors.rights[-1], plan.factors.rights[-1])
        )
        self._successors = [peers.like.lent.borrow_successor(state) for state in states]

    def point(self) -> bool:
        """True if kernels know where all of this is: see :meth:`TensorList.point`."""
        plan, means = self._plan, self._means
        if not plan.dense.point(self._xs, means, self._message):
            return False
        if plan.narrow is not None and not plan.narrow.point(rows_of(self._given), rows_of(self._xs)):
            return False
        received = [self._message[plan.places[i] : plan.places[i + 1]][None] for i in plan.at]
        own = rows_of(means, plan.at)
        there = plan.matrices.point(rows_of(self._xs, plan.at), None, own) and plan.means.point(own)
        there = there and plan.received.point(received)
        there = there and plan.states.point(rows_of(self._states), None, rows_of(self._successors))
        drawn = plan.drawn
        return there and (drawn is None or drawn.point(rows_of(plan.factors.cut(self._own, plan.factors.rights))))

    def forget(self) -> None:
        """The step is not made: what was borrowed for it is given back."""
        for successor in self._successors:
            self._peers.like.lent.give_back(successor)

    def sum_left(self) -> Exchange[None]:
        """P = the mean of M Q for each matrix, of its state or what is drawn; and the means of what travels as it is."""
        plan, message = self._plan, self._message
        if plan.narrow is not None:
            plan.narrow.widen()
        if plan.at:
            if plan.drawn is not None:
                draw_many(self._own, plan.drawn, self._peers.like.step)
            bases = plan.states if plan.drawn is None else plan.drawn
            unit_rows_many(self._right, bases, plan.factors)
            project_rows_many(message, plan.matrices, plan.factors, self._right)
        plan.dense.put(message, keep=self._keep)
        answer = yield AllReduce(message, "mean", donate=True, parts=plan.parts)
        put_answer(answer, message)

    def orthonormalize(self) -> None:
        """P = orth(P)."""
        plan = self._plan
        if plan.at:
            self._finite = finite_many(plan.all, plan.received)
            clear_many(self._finite, plan.received)
            orthonormalize_many(self._left, self._message, plan.factors)

    def sum_right(self) -> Exchange[None]:
        """Q = the mean of M^T P for each matrix."""
        plan = self._plan
        if not plan.at:
            return
        project_columns_many(self._own, plan.matrices, plan.factors, self._left)
        fit_many(self._own, plan.factors, self._left, poison=True)
        message = self._right.copy_(self._own)
        if len(plan.at) == 1:
            message = message.view(plan.sides[0][2], -1)  # as it would travel alone
        answer = yield AllReduce(message, "mean", donate=True, parts=plan.own_parts)
        put_answer(answer, self._right)

    def split(self, states: Sequence[Any]) -> list[Exchanged[Any]]:
        """The means P Q^T, and what is left of each matrix; Q follows the states of the matrices, others stay."""
        plan, xs, lent = self._plan, self._xs, self._peers.like.lent
        results = plan.dense.results(self._message, xs, self._means, keep=self._keep)
        for i, result in results.items():
            result.state = states[i]
        if plan.at:
            own, right, left = self._own if self._keep else None, self._right, self._left
            finite = self._finite & fit_many(right, plan.factors, left, poison=False)
            split_low_rank_many(left, plan.matrices, plan.factors, own, right)
            if plan.narrow is None:
                poison_many(finite, plan.means)
            else:
                finite = plan.narrow.narrow(finite, plan.means)
            succeed_many(finite, plan.states, plan.factors, right)
            for i, old, new, flag in zip(plan.at, self._states, self._successors, finite.unbind(0), strict=True):
                lent.give_back(old)
                mean = self._means[i] if plan.narrow is None else self._given[i]
                results[i] = Exchanged(mean, xs[i] if self._keep else None, new, flag)
        return [results[i] for i in range(len(xs))]


def open_factors(
    owner: object,
    sides: Sequence[Sides | None],
    xs: Sequence[Tensor],
    states: Sequence[Any],
    peers: Sequence[Peer],
    *,
    drawn_as: str | None,
) -> FactorBucket | None:
    """A step of these tensors, whose matrices have these sides, and states ``[l, r]``; None if they cannot be worked on where
    they are. ``owner``: whose plan it is, hashable. ``drawn_as``: the name of the method whose shared streams draw what
    matrices are projected with; None: that are their states.
    """
    if not isinstance(peers, Peers):
        return None
    rooms = rooms_for(xs, None not in sides, peers)
    if rooms is None or not may_open(rooms, peers):
        return None
    held = [state for state, of in zip(states, sides, strict=True) if of is not None]
    if not all(map(is_plain, held)):
        return None
    workspace, sizes, device = peers.like.lent.workspace, [x.numel() for x in xs], xs[0].device
    assert workspace is not None
    key = (FactorBucket, owner, device, xs[0].dtype, tuple(sides), tuple(sizes), peers.names, peers.like.seed)
    plan: FactorPlan | None = workspace.kept.get(key)
    if plan is None:
        if capturing():
            return None
        whose = [] if drawn_as is None else [peer for peer, of in zip(peers, sides, strict=True) if of is not None]
        streams = [peer.shared(drawn_as or "") for peer in whose]
        plan = FactorPlan(sides, sizes, device, narrow=rooms is not xs, streams=streams)
    bucket = FactorBucket(plan, rooms, xs, held, peers, workspace)
    if not bucket.point():
        bucket.forget()
        return None
    workspace.kept[key] = plan
    return bucket


def may_open(xs: Sequence[Tensor], peers: Peers) -> bool:
    """True if kernels for many tensors can take these, of any shapes, where they are."""
    device = xs[0].device
    return not on_host(device) and backends.runs_triton(device) and are_plain(xs, peers)


def rows_of(tensors: Sequence[Tensor], at: Sequence[int] | None = None) -> list[Tensor]:
    """These of the tensors, by default all, as ``[1, n]``."""
    return [tensors[i].view(1, -1) for i in (range(len(tensors)) if at is None else at)]


def put_answer(answer: Tensor, message: Tensor) -> None:
    """Puts what the network has answered where the message ``[s]`` was."""
    flat = answer.contiguous().view(-1)
    wires.check_shape("sum", flat, message.shape)
    if flat.data_ptr() != message.data_ptr():
        message.copy_(flat)
