"""The communicator with one rank that averages for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from grace import wire as wires
from grace.collectives import Broadcast as BroadcastOp
from grace.collectives import Exchange, Permute, Traffic
from grace.communicators.base import sealed, stand_in, traced
from grace.communicators.two_hops import TwoHops
from grace.errors import ConfigurationError
from grace.loan import Loan
from grace.method import Exchanged
from grace.peer import Peer
from grace.registry.recipes import register_communicator


@register_communicator("parameterserver")
@dataclass(frozen=True, slots=True)
class ParameterServer(TwoHops):
    """Everyone sends its wire to one rank, which averages, compresses again, and broadcasts that.

    A worker's traffic is constant; the server's grows with W.

    Args:
        compressor: any that averages.
        server_memory: whether the server keeps its second rounding for the next step. State: n numbers, on the server.
        server: which rank that is.
    """

    server: int = 0

    def __post_init__(self) -> None:
        if not (type(self.server) is int and self.server >= 0):
            raise ConfigurationError(f"ParameterServer: server={self.server!r} is not a rank; legal: 0 to W-1")
        TwoHops.__post_init__(self)

    def _exchange(self, x: Tensor, peer: Peer, state: Any) -> Exchange[Exchanged[Any]]:
        W, n, server = peer.world, x.numel(), self.server
        if server >= W:
            raise ConfigurationError(f"ParameterServer: server={server} is not a rank; legal: 0 to {W - 1}")
        serving = peer.rank == server
        loan = Loan(x, peer)
        wire, own_finite = self._encode(loan, peer)
        widths = yield from self._widths(wire, n, peer)
        mine = sealed(wire, own_finite, max(widths), peer)
        inbox = [mine] * W
        for rank in range(W):
            if rank != server:
                inbox[rank] = yield Permute(mine, ((rank, server),))
        seen = [wires.read_headers(one, peer.step, rank) for rank, one in enumerate(inbox)] if serving else []
        finite = all(seen)
        total = peer.lent.scratch((1, n), x)  # the server's: the mean, then its second rounding
        if serving and finite:
            received = [wires.unseal(one, width, wire.dtype) for one, width in zip(inbox, widths, strict=True)]
            self._aggregate(received, total, peer, 1 / W)
        else:
            total.zero_()
        again = self._compress_again(total, state, peer)  # other ranks' only gives the shape
        widths = yield from self._widths(again, n, peer)
        reply = (
            sealed(again, finite, widths[server], peer)
            if serving
            else mine.new_zeros(1, wires.sealed_bytes(widths[server]))
        )
        answer = yield BroadcastOp(reply, server)
        if not wires.read_headers(answer, peer.step, server):
            return loan.poison(state)
        if peer.lent.keep_rest and serving and not self.server_memory:
            loan.work.add_(total[0], alpha=W)
        mean = loan.make_room()
        self._aggregate([wires.unseal(answer, widths[server], again.dtype)], mean.view(1, -1), peer, 1.0, hop=1)
        return loan.give_back(mean, self._committed(total, 0, x, state, peer) if serving else None)

    def _traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        size = self._payload(like.numel())
        if size is None:
            return None
        up = [Permute(stand_in(size), ((rank, self.server),)) for rank in range(peer.world) if rank != self.server]
        return traced(peer, *up, BroadcastOp(stand_in(size), self.server))
