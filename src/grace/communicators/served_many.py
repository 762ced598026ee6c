"""Tensors of a bucket that one rank averages for all: the same bytes, means and memories as one by one, on an accelerator by
as many launches as one of them takes. Nothing here asks the host of an accelerator.

Letters: T tensors of n_t numbers; W workers; messages of s bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grace import wire as wires
from grace.collectives import Broadcast, Exchange, Permute
from grace.communicators.bucket import BucketPlan
from grace.communicators.many import Prepared, agree, explaining, give_back, prepare, takes_bucket
from grace.communicators.server_debts import ServerDebts
from grace.contract.compressor import Compressor
from grace.contract.method import Exchanged
from grace.contract.peer import Peer, Peers
from grace.contract.workspace import Workspace, take_rooms
from grace.kernels.multi_tensor import finite_many
from grace.kernels.tensor_list import TensorList
from grace.random import Stream


@dataclass(frozen=True, slots=True)
class ServedBucket:
    """first: the tensors on their way to the server, and back to all. again, stream: what the server encodes averages with.
    averages: those, on the server, where they become what is dropped, if there are memories. rests: of the tensors, likewise.
    debts: the server memory, on a server that has one.
    """

    first: Prepared[BucketPlan]
    again: Compressor
    stream: Stream
    averages: TensorList
    rests: TensorList | None
    debts: ServerDebts | None

    @staticmethod
    def of(
        owner: object,
        hops: tuple[Compressor, Compressor],
        stream: Callable[[Compressor, Peer, int], Stream],
        xs: Sequence[Tensor],
        states: Sequence[Any],
        peers: Peers,
        workspace: Workspace,
        *,
        serves: bool,
    ) -> ServedBucket | None:
        """The bucket of these tensors, of any shapes, if kernels for many tensors can take it; None: they go otherwise. With
        ``serves`` the states are this server's memories.
        """
        if not takes_bucket(hops[1], xs[0].device):
            return None
        first = prepare(
            owner, hops[0], lambda peer: stream(hops[0], peer, 0), xs, peers, workspace, BucketPlan, anywhere=True
        )
        if first is None:
            return None
        sizes, device, rests, like = first.many.sizes, first.many.device, peers.rests, peers.like
        key = (ServedBucket, owner, device, sizes, peers.names, like.rank, like.seed, rests is None, serves)
        kept: tuple[TensorList, TensorList | None, ServerDebts | None] | None = workspace.kept.get(key)
        if kept is None:
            dropped = None if rests is None else TensorList(sizes, (), (), device)
            debts = ServerDebts(sizes, [0] * len(sizes), like.world, device) if serves else None
            streams = [stream(hops[1], peer, 1) for peer in peers]
            kept = TensorList(sizes, first.plan.wires, streams, device), dropped, debts
        averages, dropped, debts = kept
        rooms = take_rooms(workspace, sizes, device)
        there = averages.point(rooms, None, rooms if rests or serves else None)
        if hops[1].takes_work and hops[1].handles_many:
            there = there and averages.lend(take_rooms(workspace, sizes, device) if rests or serves else rooms)
        if not there or not (dropped is None or rests is None or dropped.point(rests)):
            return None
        if debts is not None and not debts.point(rooms, states, like.lent):
            return None
        workspace.kept[key] = kept
        return ServedBucket(first, hops[1], stream(hops[1], peers[0], 1), averages, dropped, debts)

    def average(self, theirs: Tensor, peers: Peers) -> Tensor:
        """The server's message ``[s]``, of what ``theirs [W, s]`` say, with flags."""
        plan, workspace, peer = self.first.plan, self.first.workspace, peers.like
        compressor, scale = self.first.compressor, 1 / peer.world
        legal = compressor.aggregate_many_(theirs, self.averages, scale, self.first.stream)
        explain = explaining(compressor, plan, theirs, self.averages, scale, peers)
        finite = agree(
            theirs, plan.words, legal, self.averages, peers, clear=True, overflows=compressor.overflows, explain=explain
        )
        if self.debts is not None:
            self.debts.add(peer.lr)
        message = plan.take(workspace, self.averages.device)
        self.again.encode_many_(message, self.averages, self.stream)
        # the averages are now what the second rounding has dropped, which is the server's debt
        if self.debts is not None:
            finite = finite_many(finite, self.averages)
        elif self.rests is not None:
            torch._foreach_add_(list(self.rests.xs), list(self.averages.xs), alpha=peer.world)
            finite = finite_many(finite, self.rests)
        wires.write_bucket_flags(message, plan.words, finite, peer.step)
        return message


def exchange_served(
    bucket: ServedBucket, server: int, xs: Sequence[Tensor], peers: Peers
) -> Exchange[list[Exchanged[Any]]]:
    """The results of all tensors, of any shapes, whose means are written over them."""
    first, peer = bucket.first, peers.like
    many, plan, workspace, serving = first.many, first.plan, first.workspace, peer.rank == server
    message = plan.take(workspace, many.device)
    finite = first.compressor.encode_many_(message, many, first.stream)
    wires.write_bucket_flags(message, plan.words, finite, peer.step)
    theirs = workspace.take((peer.world if serving else 0, plan.size), torch.uint8, many.device)
    for rank in range(peer.world):
        answer = message
        if rank != server:
            answer = yield Permute(message, ((rank, server),), parts=plan.parts)
            wires.check_shape("wires", answer, message.shape)
        if serving:
            theirs[rank].copy_(answer)
    if serving:
        reply = bucket.average(theirs, peers)
    else:
        reply = workspace.take((plan.size,), torch.uint8, many.device).zero_()
    answer = yield Broadcast(reply, server, parts=plan.parts)
    wires.check_shape("wires", answer, reply.shape)
    received = answer.contiguous().view(1, -1)
    legal = bucket.again.aggregate_many_(received, first.means or many, 1.0, bucket.stream)
    explain = explaining(bucket.again, plan, received, many, 1.0, peers)
    fine = agree(
        received, plan.words, legal, many, peers, first.means, overflows=bucket.again.overflows, explain=explain
    )
    states = None if bucket.debts is None else bucket.debts.commit(fine, xs, peer.lr, peer.lent)
    return give_back(fine, xs, peers, states)
