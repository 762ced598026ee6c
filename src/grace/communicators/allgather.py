"""The communicator that gives every wire to everyone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from grace import wire as wires
from grace.collectives import AllGather, Exchange, Traffic
from grace.communicators.base import Communicator, seal, stand_in, sum_costs
from grace.contract.loan import Loan
from grace.contract.method import Exchanged
from grace.contract.peer import Peer
from grace.registry.recipes import register_communicator


@register_communicator("allgather")
@dataclass(frozen=True, slots=True)
class Allgather(Communicator):
    """Everyone sends its wire to everyone and decodes all of them, in the order of the ranks: traffic grows with W."""

    def _exchange(self, x: Tensor, peer: Peer, state: Any) -> Exchange[Exchanged[Any]]:
        loan = Loan(x, peer)
        wire, finite = self._encode(loan, peer)
        widths = yield from self._widths(wire, x.numel(), peer)
        gathered = yield AllGather(seal(wire, finite, max(widths), peer)[0])  # [W, s]
        finite = wires.read_headers(gathered, peer.step)
        return self._give_back(loan, list(gathered[:, None]), widths, wire.dtype, finite, peer)

    def _traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        size = self._payload(like.numel())
        return None if size is None else sum_costs(peer, AllGather(stand_in(size)))
