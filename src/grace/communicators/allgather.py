"""The communicator that gives every wire to everyone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from grace import wire as wires
from grace.collectives import AllGather, Exchange, Traffic
from grace.communicators.base import meta_tensor, seal, sum_costs
from grace.communicators.bucket import BucketPlan
from grace.communicators.counted_many import NoPlan, exchange_counted, gather_counted
from grace.communicators.one_hop import OneHop
from grace.contract.loan import Loan
from grace.contract.method import Exchanged
from grace.contract.peer import Peer, Peers
from grace.contract.workspace import Workspace
from grace.kernels.variable_sparse.parts import WirePlaces
from grace.registry.recipes import register_communicator


@register_communicator("allgather")
@dataclass(frozen=True, slots=True)
class Allgather(OneHop):
    """Everyone sends its wire to everyone and decodes all of them, in the order of the ranks: traffic grows with W."""

    def _exchange(self, x: Tensor, peer: Peer, state: Any) -> Exchange[Exchanged[Any]]:
        if (code := self._counted(x)) is not None and (
            bucket := self._prepare([x], Peers.of([peer]), NoPlan.of)
        ) is not None:
            return (yield from exchange_counted(bucket, code, [x], Peers.of([peer]), self._gather_counted))[0]
        loan = Loan(x, peer, as_is=True)
        wire, finite = self._encode(loan, peer)
        widths = yield from self._widths(wire, x.numel(), peer)
        gathered = yield AllGather(seal(wire, finite, max(widths), peer)[0])  # [W, s]
        finite = wires.read_headers(gathered, peer.step)
        return self._give_back(loan, list(gathered[:, None]), widths, wire.dtype, finite, peer)

    def batches(self, like: Tensor) -> bool:
        return self._exact and (not self.compressor.varies or self._counted(like) is not None)

    @property
    def _exact(self) -> bool:
        return type(self) is Allgather

    def _gather(self, message: Tensor, room: Tensor, plan: BucketPlan, rank: int) -> Exchange[None]:
        answer = yield AllGather(message, into=room, parts=plan.parts)  # [W, s]
        wires.check_shape("wires", answer, room.shape)
        if answer.data_ptr() != room.data_ptr():
            room.copy_(answer)

    def _gather_counted(
        self, message: Tensor, places: WirePlaces, workspace: Workspace, peer: Peer
    ) -> Exchange[Tensor]:
        return (yield from gather_counted(message, places, workspace, peer))

    def _traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        size = self._payload(like.numel())
        return None if size is None else sum_costs(peer, AllGather(meta_tensor(size)))
