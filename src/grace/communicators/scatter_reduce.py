"""The communicator in which every rank averages a chunk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grace import wire as wires
from grace.collectives import AllGather, AllToAll, Exchange, Traffic
from grace.communicators.base import meta_tensor, seal, sum_costs
from grace.communicators.scattered_many import exchange_scattered, prepare_scattered
from grace.communicators.two_hops import TwoHops
from grace.contract.loan import Loan, reads_narrow
from grace.contract.method import Exchanged
from grace.contract.peer import Peer, Peers
from grace.flags.finite import and_, fill_unless_
from grace.registry.recipes import register_communicator


@register_communicator("scatterreduce")
@dataclass(frozen=True, slots=True)
class ScatterReduce(TwoHops):
    """Two rounds, constant traffic: rank r averages chunk r, compresses it again, and sends that to everyone.

    Args:
        compressor: any that averages.
        server_memory: whether the owner of a chunk keeps its second rounding for the next step. State: n/W numbers.
    """

    def _exchange(self, x: Tensor, peer: Peer, state: Any) -> Exchange[Exchanged[Any]]:
        W, n = peer.world, x.numel()
        c = math.ceil(n / W)
        loan = Loan(x, peer, as_is=True)
        if n != W * c:
            loan.pad(W * c)
        chunk, finite = yield from self._first_hop(loan, peer)
        fill_unless_(finite, chunk, 0.0)
        again = self._compress_again(chunk, state, peer)  # chunk: now my second rounding
        finite = and_(finite, self._keep_debt(chunk, loan.work.view(W, c)[peer.rank], peer))
        widths = yield from self._widths(again, c, peer)
        final = yield AllGather(seal(again, finite, max(widths), peer)[0])  # [W, s]
        finite = wires.read_headers(final, peer.step)
        if finite is False:
            return loan.poison(state)
        mean = loan.make_room()
        received = [
            wires.unseal(message, width, again.dtype) for message, width in zip(final[:, None], widths, strict=True)
        ]
        for row, payload in zip(mean.view(W, 1, c), received, strict=True):
            finite = self._decode([payload], row, peer, 1.0, finite, hop=1)
        if finite is False:
            return loan.poison(state)
        return loan.give_back(mean, self._commit(chunk, peer.rank * c, x, state, finite, peer), finite)

    def batches(self, like: Tensor) -> bool:
        exact = type(self) is ScatterReduce and not self.compressor.varies  # a subclass may exchange otherwise
        return exact and (like.dtype == torch.float32 or reads_narrow(like))

    def exchange_all(
        self, xs: Sequence[Tensor], states: Sequence[Any], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[Any]]]:
        """Both hops of all tensors, of any shapes, in one collective each; on an accelerator by as many launches as one of
        them takes.
        """
        workspace = peers[0].lent.workspace if peers else None
        if workspace is not None and self.batches(xs[0]):
            hops, whose, serves = (self._at(0), self._at(1)), Peers.of(peers), self.server_memory
            bucket = prepare_scattered(hops, self._stream, xs, states, whose, workspace, serves=serves)
            if bucket is not None:
                return (yield from exchange_scattered(bucket, xs, whose))
        return (yield from TwoHops.exchange_all(self, xs, states, peers))

    def _traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        size = self._payload(math.ceil(like.numel() / peer.world))
        return (
            None
            if size is None
            else sum_costs(peer, AllToAll(meta_tensor(peer.world, size)), AllGather(meta_tensor(size)))
        )
