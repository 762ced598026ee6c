"""The communicator in which ranks broadcast in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grace import wire as wires
from grace.collectives import Broadcast, Exchange, Parts, Traffic
from grace.communicators.base import meta_tensor, read_all_headers, seal, sum_costs
from grace.communicators.bucket import BucketPlan
from grace.communicators.one_hop import OneHop
from grace.contract.loan import Loan, reads_narrow
from grace.contract.method import Exchanged
from grace.contract.peer import Peer
from grace.contract.workspace import Workspace
from grace.kernels.variable_sparse.parts import WirePlaces
from grace.registry.recipes import register_communicator


@register_communicator("broadcast")
@dataclass(frozen=True, slots=True)
class Broadcasts(OneHop):
    """Each rank in turn broadcasts its wire: like Allgather, in W rounds, and without padding where sizes vary."""

    def _exchange(self, x: Tensor, peer: Peer, state: Any) -> Exchange[Exchanged[Any]]:
        loan = Loan(x, peer)
        wire, finite = self._encode(loan, peer)
        widths = yield from self._widths(wire, x.numel(), peer)
        message = seal(wire, finite, widths[peer.rank], peer)[0]
        received = []
        for root, width in enumerate(widths):
            buf = message if root == peer.rank else message.new_zeros(wires.sealed_bytes(width))
            received.append((yield Broadcast(buf, root))[None])
        finite = read_all_headers(received, peer)
        return self._give_back(loan, received, widths, wire.dtype, finite, peer)

    def batches(self, like: Tensor) -> bool:
        known = not self.compressor.varies or self._counted(like) is not None
        return self._exact and known and (like.dtype == torch.float32 or reads_narrow(like))

    @property
    def _exact(self) -> bool:
        return type(self) is Broadcasts

    def _gather(self, message: Tensor, room: Tensor, plan: BucketPlan, rank: int) -> Exchange[None]:
        for root, row in enumerate(room):
            answer = yield Broadcast(message if root == rank else row.zero_(), root, parts=plan.parts)
            wires.check_shape("wires", answer, row.shape)
            row.copy_(answer)

    def _gather_counted(
        self, message: Tensor, places: WirePlaces, workspace: Workspace, peer: Peer
    ) -> Exchange[Tensor]:
        room = workspace.take((peer.world, places.size), torch.uint8, message.device).zero_()
        for root, (row, widths) in enumerate(zip(room, places.widths, strict=True)):
            sizes = tuple(map(wires.sealed_bytes, widths))
            slots = list(zip(places.begins, sizes, strict=True))
            sent = workspace.take(sum(sizes), torch.uint8, message.device).zero_()
            if root == peer.rank:
                torch.cat([message[at : at + size] for at, size in slots], out=sent)
            answer = yield Broadcast(sent, root, parts=Parts(tuple(range(len(sizes))), sizes))
            wires.check_shape("wires", answer, sent.shape)
            torch._foreach_copy_([row[at : at + size] for at, size in slots], list(answer.split_with_sizes(sizes)))
        return room

    def _traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        size = self._payload(like.numel())
        return (
            None
            if size is None
            else sum_costs(peer, *(Broadcast(meta_tensor(size), root) for root in range(peer.world)))
        )
