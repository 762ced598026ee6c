"""The communicator in which one rank averages for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grace import wire as wires
from grace.collectives import Broadcast, Exchange, Permute, Traffic
from grace.communicators.base import meta_tensor, read_all_headers, seal, sum_costs
from grace.communicators.served_many import ServedBucket, exchange_served
from grace.communicators.two_hops import TwoHops
from grace.contract.loan import Loan, reads_narrow
from grace.contract.method import Exchanged, Method
from grace.contract.peer import Peer, Peers
from grace.errors import ConfigurationError
from grace.flags.finite import Flag, and_, fill_unless_
from grace.registry.recipes import register_communicator


@register_communicator("parameterserver")
@dataclass(frozen=True, slots=True)
class ParameterServer(TwoHops):
    """Everyone sends its wire to one rank, which averages, compresses again, and broadcasts that.

    A worker's traffic is constant; the server's grows with W.

    Args:
        compressor: any that averages.
        server_memory: whether the server keeps its second rounding for the next step. State: n numbers, on the server.
        server: the rank of the server.
    """

    server: int = 0

    def __post_init__(self) -> None:
        if not (type(self.server) is int and self.server >= 0):
            raise ConfigurationError(f"ParameterServer: server={self.server!r} is not a rank; legal: 0 to W-1")
        TwoHops.__post_init__(self)

    def _check(self, world: int) -> None:
        if self.server >= world:
            raise ConfigurationError(f"ParameterServer: server={self.server} is not a rank; legal: 0 to {world - 1}")

    def _exchange(self, x: Tensor, peer: Peer, state: Any) -> Exchange[Exchanged[Any]]:
        W, n, server = peer.world, x.numel(), self.server
        self._check(W)
        serving = peer.rank == server
        loan = Loan(x, peer)
        wire, own_finite = self._encode(loan, peer)
        widths = yield from self._widths(wire, n, peer)
        message = seal(wire, own_finite, max(widths), peer)  # [1, s]
        inbox = [message] * W
        for rank in range(W):
            if rank != server:
                inbox[rank] = (yield Permute(message[0], ((rank, server),)))[None]
        finite: Flag = read_all_headers(inbox, peer) if serving else False
        total = peer.lent.scratch((1, n), x)  # the server's: the mean, then its second rounding
        received = [wires.unseal(message, width, wire.dtype) for message, width in zip(inbox, widths, strict=True)]
        finite = self._decode(received, total, peer, 1 / W, finite)
        fill_unless_(finite, total, 0.0)
        again = self._compress_again(total, state, peer)  # on other ranks only its shape matters
        if serving:
            finite = and_(finite, self._keep_debt(total, loan.work, peer))
        widths = yield from self._widths(again, n, peer)
        reply = (
            seal(again, finite, widths[server], peer)[0]
            if serving
            else message.new_zeros(wires.sealed_bytes(widths[server]))
        )
        answer = (yield Broadcast(reply, server))[None]
        finite = wires.read_headers(answer, peer.step, server)
        if finite is False:
            return loan.poison(state)
        mean = loan.make_room()
        response = wires.unseal(answer, widths[server], again.dtype)
        finite = self._decode([response], mean.view(1, -1), peer, 1.0, finite, hop=1)
        if finite is False:
            return loan.poison(state)
        state = self._commit(total, 0, x, state, finite, peer) if serving else None
        return loan.give_back(mean, state, finite)

    def batches(self, like: Tensor) -> bool:
        exact = type(self) is ParameterServer and not self.compressor.varies  # a subclass may exchange otherwise
        return exact and (like.dtype == torch.float32 or reads_narrow(like))

    def exchange_all(
        self, xs: Sequence[Tensor], states: Sequence[Any], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[Any]]]:
        """Exchanges tensors of any shapes, on an accelerator by as many launches as one of them takes."""
        workspace = peers[0].lent.workspace if peers else None
        if workspace is not None and self.batches(xs[0]):
            self._check(peers[0].world)
            whose, hops = Peers.of(peers), (self._at(0), self._at(1))
            serves = self.server_memory and whose.like.rank == self.server
            bucket = ServedBucket.of(self, hops, self._stream, xs, states, whose, workspace, serves=serves)
            if bucket is not None:
                return (yield from exchange_served(bucket, self.server, xs, whose))
        return (yield from Method.exchange_all(self, xs, states, peers))

    def _traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        size = self._payload(like.numel())
        if size is None:
            return None
        up = [Permute(meta_tensor(size), ((rank, self.server),)) for rank in range(peer.world) if rank != self.server]
        return sum_costs(peer, *up, Broadcast(meta_tensor(size), self.server))
