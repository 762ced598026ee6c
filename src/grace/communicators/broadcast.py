"""The communicator whose ranks speak in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from grace import wire as wires
from grace.collectives import Broadcast as BroadcastOp
from grace.collectives import Exchange, Traffic
from grace.communicators.base import Communicator, decoded, sealed, stand_in, traced
from grace.loan import Loan
from grace.method import Exchanged
from grace.peer import Peer
from grace.registry.recipes import register_communicator


@register_communicator("broadcast")
@dataclass(frozen=True, slots=True)
class Broadcast(Communicator):
    """Each rank in turn broadcasts its wire: like Allgather, in W rounds, and without padding where sizes vary."""

    def _exchange(self, x: Tensor, peer: Peer, state: Any) -> Exchange[Exchanged[Any]]:
        loan = Loan(x, peer)
        wire, finite = self._encode(loan, peer)
        widths = yield from self._widths(wire, x.numel(), peer)
        mine = sealed(wire, finite, widths[peer.rank], peer)
        received = []
        for root, width in enumerate(widths):
            buf = mine if root == peer.rank else mine.new_zeros(1, wires.sealed_bytes(width))
            received.append((yield BroadcastOp(buf, root)))
        seen = [wires.read_headers(one, peer.step, root) for root, one in enumerate(received)]
        if not all(seen):
            return loan.poison(None)
        return decoded(self, loan, received, widths, wire.dtype, peer)

    def _traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        size = self._payload(like.numel())
        return (
            None if size is None else traced(peer, *(BroadcastOp(stand_in(size), root) for root in range(peer.world)))
        )
