"""The matrices of a bucket of which both factors travel, the left one first, and what travels uncompressed beside them.

Letters: M is m x l; factors are held as rows, p ``[r, m]`` and q ``[r, l]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grace.collectives import AllReduce, Exchange, Parts
from grace.contract.method import Exchanged
from grace.contract.peer import Peers
from grace.contract.workspace import Workspace
from grace.flags.finite import flags
from grace.kernels.low_rank.grouped import Factors
from grace.kernels.tensor_list import TensorList
from grace.methods.common.low_rank_bucket import LowRankBucket, LowRankPlan, OtherNumbers, find_plan, only, put_answer
from grace.methods.common.matrices import Sides
from grace.random import Stream


class FactorPlan(LowRankPlan):
    """Plan of a bucket of factors: what stays the same at every step.

    Args:
        sides, sizes, device: as in :class:`LowRankPlan`. dtype: of the tensors. streams: of each matrix, what it is projected
            with where that is drawn; empty where it is not.
    """

    def __init__(
        self,
        sides: Sequence[Sides | None],
        sizes: Sequence[int],
        device: torch.device,
        dtype: torch.dtype,
        streams: Sequence[Stream],
    ):
        sent = [n if of is None else of[2] * of[0] for of, n in zip(sides, sizes, strict=True)]
        LowRankPlan.__init__(self, sides, sizes, sent, device)
        self.factors = Factors(self.sides, [self.places[i] for i in self.at], device)
        self.furnish((self.factors.lefts[-1], self.factors.rights[-1], self.factors.rights[-1]))
        numbers, rights = [sizes[i] for i in self.at], [l * r for _, l, r in self.sides]
        self.matrices, self.means = (TensorList(numbers, (), (), device) for _ in range(2))
        self.received = TensorList([m * r for m, _, r in self.sides], (), (), device)
        self.states = TensorList(rights, (), (), device)
        self.drawn = TensorList(rights, (), streams, device) if streams else None
        self.own_parts = Parts(tuple(self.at), tuple(rights))
        self.others = None if dtype is torch.float32 else OtherNumbers(numbers, device)


class FactorBucket(LowRankBucket):
    """A step of T tensors.

    Args:
        plan, xs, peers: as in :class:`LowRankBucket`. states: of each matrix ``[l, r]``, contiguous float32.

    left, own, right: rooms for factors, side by side. successors: of the states.
    """

    def __init__(
        self, plan: FactorPlan, xs: Sequence[Tensor], states: Sequence[Tensor], peers: Peers, workspace: Workspace
    ):
        LowRankBucket.__init__(self, plan, xs, peers, workspace)
        self.plan = plan
        self.left, self.own, self.right = plan.rooms
        self.successors = [peers.like.lent.borrow_successor(state) for state in states]
        means = only(self.means, plan.at)
        plan.matrices.point(only(self.xs, plan.at), None, means)
        plan.means.point(means)
        if self.moved:
            plan.received.point(only(plan.pieces, plan.at))
        plan.states.point(states, None, self.successors)
        if plan.drawn is not None:
            plan.drawn.point(self.own.split_with_sizes(plan.own_parts.sizes))

    def sum_right(self, finite: Tensor) -> Exchange[None]:
        """The mean of own in right, of the matrices that are ``finite [T]``, as far as the host knows: of others nobody asks
        for it.
        """
        plan, sizes = self.plan, self.plan.own_parts.sizes
        message, sent = self.right.copy_(self.own), [t for t, fine in enumerate(flags(finite)) if fine is not False]
        if len(sent) == len(sizes):
            put_answer((yield AllReduce(message, "mean", donate=True, parts=plan.own_parts)), message)
        elif sent:
            pieces = list(only(message.split_with_sizes(sizes), sent))
            parts = Parts(tuple(only(plan.at, sent)), tuple(only(sizes, sent)))
            message = torch.cat(pieces)
            put_answer((yield AllReduce(message, "mean", donate=True, parts=parts)), message)
            torch._foreach_copy_(pieces, list(message.split_with_sizes(parts.sizes)))

    def results(self, finite: Tensor | None, states: Sequence[Any]) -> list[Exchanged[Any]]:
        """The results of all tensors; of the matrices, which are ``finite [T]``, successors follow the states."""
        plan, lent = self.plan, self._peers.like.lent
        out = plan.dense.results(self.message, self.xs, self.means, keep=self.keep)
        if finite is not None:
            out.update(self.results_of(plan.at, finite))
        for i, new in zip(plan.at, self.successors, strict=True):
            lent.give_back(states[i])
            out[i].state = new
        for i in plan.dense.at:
            out[i].state = states[i]
        return list(map(out.__getitem__, range(len(self.xs))))


def find_factor_plan(
    owner: object,
    sides: Sequence[Sides | None],
    xs: Sequence[Tensor],
    peers: Peers,
    workspace: Workspace,
    *,
    drawn_as: str | None,
) -> FactorPlan:
    """The plan of these tensors, whose matrices have these sides. ``owner``: whose it is, hashable. ``drawn_as``: the name of
    the method whose shared streams draw what matrices are projected with; None: that are their states.
    """
    device, dtype, sizes = xs[0].device, xs[0].dtype, tuple(map(Tensor.numel, xs))

    def make() -> FactorPlan:
        whose = [] if drawn_as is None else [peer for peer, of in zip(peers, sides, strict=True) if of is not None]
        return FactorPlan(sides, sizes, device, dtype, [peer.shared(drawn_as or "") for peer in whose])

    return find_plan(
        workspace, (FactorPlan, owner, device, dtype, sizes, peers.names, peers.like.seed), tuple(sides), make
    )
