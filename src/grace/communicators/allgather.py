"""The communicator that gives every wire to everyone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from grace import wire as wires
from grace.collectives import AllGather, Exchange, Traffic
from grace.communicators.base import meta_tensor, seal, sum_costs
from grace.communicators.bucket import BucketPlan
from grace.communicators.counted_many import NoPlan, exchange_counted
from grace.communicators.one_hop import OneHop
from grace.compute import backends
from grace.contract.loan import Loan
from grace.contract.method import Exchanged
from grace.contract.peer import Peer, Peers
from grace.flags.finite import on_host
from grace.kernels.wire_codes import WireCode
from grace.registry.recipes import register_communicator


@register_communicator("allgather")
@dataclass(frozen=True, slots=True)
class Allgather(OneHop):
    """Everyone sends its wire to everyone and decodes all of them, in the order of the ranks: traffic grows with W."""

    def _exchange(self, x: Tensor, peer: Peer, state: Any) -> Exchange[Exchanged[Any]]:
        if (code := self._counted(x)) is not None and (
            bucket := self._prepare([x], Peers.of([peer]), NoPlan.of)
        ) is not None:
            return (yield from exchange_counted(bucket, code, [x], Peers.of([peer])))[0]
        loan = Loan(x, peer, as_is=True)
        wire, finite = self._encode(loan, peer)
        widths = yield from self._widths(wire, x.numel(), peer)
        gathered = yield AllGather(seal(wire, finite, max(widths), peer)[0])  # [W, s]
        finite = wires.read_headers(gathered, peer.step)
        return self._give_back(loan, list(gathered[:, None]), widths, wire.dtype, finite, peer)

    def batches(self, like: Tensor) -> bool:
        exact = type(self) is Allgather  # a subclass may exchange otherwise
        return exact and (not self.compressor.varies or self._counted(like) is not None)

    def exchange_all(
        self, xs: Sequence[Tensor], states: Sequence[Any], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[Any]]]:
        """As :meth:`OneHop.exchange_all`, also of wires that are counted."""
        if peers and (code := self._counted(xs[0])) is not None:
            whose = Peers.of(peers)
            if (lists := self._prepare(xs, whose, NoPlan.of)) is not None:
                return (yield from exchange_counted(lists, code, xs, whose))
        return (yield from OneHop.exchange_all(self, xs, states, peers))

    def _counted(self, like: Tensor) -> WireCode | None:
        """The code of wires that kernels for many tensors can write and read on like's device; None: there are none."""
        if type(self) is not Allgather or on_host(like.device) or not backends.runs_triton(like.device):
            return None
        return self.compressor.counted

    def _gather(self, message: Tensor, room: Tensor, plan: BucketPlan, rank: int) -> Exchange[None]:
        answer = yield AllGather(message, into=room, parts=plan.parts)  # [W, s]
        wires.check_shape("wires", answer, room.shape)
        if answer.data_ptr() != room.data_ptr():
            room.copy_(answer)

    def _traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        size = self._payload(like.numel())
        return None if size is None else sum_costs(peer, AllGather(meta_tensor(size)))
