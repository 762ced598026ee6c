"""The communicator in which every rank averages a chunk."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from grace import wire as wires
from grace.collectives import AllGather, AllToAll, Exchange, Traffic
from grace.communicators.base import meta_tensor, seal, sum_costs
from grace.communicators.two_hops import TwoHops
from grace.contract.loan import Loan
from grace.contract.method import Exchanged
from grace.contract.peer import Peer
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
        received = [wires.unseal(one, width, again.dtype) for one, width in zip(final[:, None], widths, strict=True)]
        for row, one in zip(mean.view(W, 1, c), received, strict=True):
            finite = self._decode([one], row, peer, 1.0, finite, hop=1)
        if finite is False:
            return loan.poison(state)
        return loan.give_back(mean, self._commit(chunk, peer.rank * c, x, state, finite, peer), finite)

    def _traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        size = self._payload(math.ceil(like.numel() / peer.world))
        return (
            None
            if size is None
            else sum_costs(peer, AllToAll(meta_tensor(peer.world, size)), AllGather(meta_tensor(size)))
        )
