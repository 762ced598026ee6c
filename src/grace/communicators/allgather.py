"""The communicator that gives every wire to everyone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grace import wire as wires
from grace.collectives import AllGather, Collective, Exchange, Traffic
from grace.communicators.base import Communicator, meta_tensor, seal, sum_costs
from grace.communicators.bucket import BucketPlan, kind_of, put
from grace.communicators.many import exchange_many, prepare
from grace.contract.loan import Loan
from grace.contract.method import Exchanged, Method
from grace.contract.peer import Peer
from grace.contract.workspace import Workspace
from grace.flags.finite import on_host
from grace.kernels.calling import place
from grace.kernels.finite import all_finite
from grace.registry.recipes import register_communicator


@register_communicator("allgather")
@dataclass(frozen=True, slots=True)
class Allgather(Communicator):
    """Everyone sends its wire to everyone and decodes all of them, in the order of the ranks: traffic grows with W."""

    def _exchange(self, x: Tensor, peer: Peer, state: Any) -> Exchange[Exchanged[Any]]:
        loan = Loan(x, peer, as_is=True)
        wire, finite = self._encode(loan, peer)
        widths = yield from self._widths(wire, x.numel(), peer)
        gathered = yield AllGather(seal(wire, finite, max(widths), peer)[0])  # [W, s]
        finite = wires.read_headers(gathered, peer.step)
        return self._give_back(loan, list(gathered[:, None]), widths, wire.dtype, finite, peer)

    @property
    def batches(self) -> type[Collective] | None:
        exact = type(self) is Allgather  # a subclass may exchange otherwise
        return AllGather if exact and not self.compressor.varies else None

    def exchange_all(
        self, xs: Sequence[Tensor], states: Sequence[Any], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[Any]]]:
        """All wires, of tensors of any shapes, are written into one message, and decoded where the network leaves them."""
        workspace = peers[0].lent.workspace if peers else None
        if workspace is not None and self.batches is not None and not on_host(xs[0].device):
            streams = [self._stream(self.compressor, peer, 0) for peer in peers]
            if (bucket := prepare(self, self.compressor, streams, xs, peers, workspace)) is not None:
                return (yield from exchange_many(bucket, xs, peers))
        if workspace is None or self.batches is None or not all(map(_is_plain, xs, peers)):
            return (yield from Method.exchange_all(self, xs, states, peers))
        rows = [x.view(1, -1) for x in xs]
        key = (self, tuple(x.numel() for x in xs))
        plan: BucketPlan | None = workspace.kept.get(key)
        made, finite, message = self._write(rows, peers, plan, workspace)
        if plan is None or not plan.fits(made):
            plan = workspace.kept[key] = BucketPlan([kind_of(wire) for wire in made])
            message = plan.take(workspace, xs[0].device)
        assert message is not None
        put(made, plan.places(message))
        step, world = peers[0].step, peers[0].world
        wires.write_bucket_headers(message, plan.words, finite, step)
        room = workspace.take((world, plan.size), torch.uint8, message.device)
        answer = yield AllGather(message, into=room)  # [W, s]
        wires.check_shape("wires", answer, room.shape)
        if answer.data_ptr() != room.data_ptr():
            room.copy_(answer)
        everywhere = wires.read_bucket_headers(room, plan.words, step)
        scale, name = 1.0 if self.compressor.aggregation == "majority" else 1 / world, self.compressor.id
        out: list[Exchanged[Any]] = []
        for x, row, received, fine, peer in zip(xs, rows, plan.gathered(room), everywhere, peers, strict=True):
            if fine:
                self.compressor.aggregate_(received, row, scale, peer.shared(name))
                fine = not self.compressor.overflows or bool(all_finite(row))
            out.append(Exchanged(x, peer.lent.rest, None) if fine else Exchanged.poisoned(x, None))
        return out

    def _write(
        self, rows: Sequence[Tensor], peers: Sequence[Peer], plan: BucketPlan | None, workspace: Workspace
    ) -> tuple[list[Tensor], list[bool], Tensor | None]:
        """The wires ``[1, w]`` of rows ``[1, n]`` plus what memories lend; whether they were finite; and the message that has
        those wires which the compressor writes where it is told to.
        """
        compressor, made, finite = self.compressor, [], []
        message = None if plan is None else plan.take(workspace, rows[0].device)
        places = [None] * len(rows) if plan is None or message is None else plan.places(message)
        try:
            for row, peer, where in zip(rows, peers, places, strict=True):
                lent, place.wire = peer.lent, where
                memory = None if lent.memory is None else lent.memory.view(1, -1)
                rest = None if lent.rest is None else lent.rest.view(1, -1)
                wire, fine = compressor.encode_(row, self._stream(compressor, peer, 0), memory, rest)
                made.append(wire)
                finite.append(bool(fine))
        finally:
            place.wire = None
        return made, finite, message

    def _traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        size = self._payload(like.numel())
        return None if size is None else sum_costs(peer, AllGather(meta_tensor(size)))


def _is_plain(x: Tensor, peer: Peer) -> bool:
    """Whether a tensor can be encoded and decoded where it is."""
    lent = peer.lent
    return (
        x.dtype is torch.float32
        and on_host(x.device)
        and x.is_contiguous()
        and x.numel() > 0
        and (lent.memory is not None) == lent.keep_rest
    )
