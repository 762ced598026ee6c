"""Base class of the communicators that give every wire to everyone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from grace import wire as wires
from grace.collectives import Exchange
from grace.communicators.base import Communicator
from grace.communicators.bound import BoundEncoder, bind_decoder
from grace.communicators.bucket import BucketPlan, are_plain, kind_of, put
from grace.communicators.counted_many import NoPlan, exchange_counted
from grace.communicators.many import Prepared, WirePlan, exchange_many, plan_bytes, prepare
from grace.compute import backends
from grace.contract.method import Exchanged, Method
from grace.contract.peer import Peer, Peers
from grace.contract.workspace import Workspace
from grace.flags.finite import on_host
from grace.kernels.calling import place
from grace.kernels.finite import all_finite
from grace.kernels.noting import ROWS
from grace.kernels.variable_sparse.parts import WirePlaces
from grace.kernels.wire_codes import WireCode
from grace.wire import Gathered

P = TypeVar("P", bound=WirePlan)


@dataclass(frozen=True, slots=True)
class OneHop(Communicator):
    """Base class of the communicators that give every wire to everyone: they differ in how the wires travel."""

    def _gather(self, message: Tensor, room: Tensor, plan: BucketPlan, rank: int) -> Exchange[None]:
        """Fills ``room [W, s]`` uint8 with the messages ``[s]`` of all ranks; this one's is ``message``."""
        raise NotImplementedError

    def _gather_counted(
        self, message: Tensor, places: WirePlaces, workspace: Workspace, peer: Peer
    ) -> Exchange[Tensor]:
        """The messages ``[s]`` of all ranks, whose wires are counted: ``[W, s]`` uint8, contiguous, zeros behind the wires."""
        raise NotImplementedError

    @property
    def _exact(self) -> bool:
        """True if it exchanges as its class says; a subclass may do otherwise."""
        return False

    def _counted(self, like: Tensor) -> WireCode | None:
        """The code of wires that kernels for many tensors can write and read on like's device; None: there are none."""
        if not self._exact or on_host(like.device) or not backends.runs_triton(like.device):
            return None
        return self.compressor.counted

    def exchange_all(
        self, xs: Sequence[Tensor], states: Sequence[Any], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[Any]]]:
        """All wires, of tensors of any shapes, are written into one message, and decoded where the network leaves them; on an
        accelerator by as many launches as one tensor takes.
        """
        if peers and (code := self._counted(xs[0])) is not None:
            whose = Peers.of(peers)
            if (lists := self._prepare(xs, whose, NoPlan.of)) is not None:
                return (yield from exchange_counted(lists, code, xs, whose, self._gather_counted))
        if peers and self.batches(xs[0]) and not on_host(xs[0].device):
            whose = Peers.of(peers)
            if (bucket := self._prepare(xs, whose, plan_bytes)) is not None:
                return (yield from exchange_many(bucket, xs, whose, self._gather))
        workspace = peers[0].lent.workspace if peers else None
        if not isinstance(peers, Peers) or workspace is None or not self.batches(xs[0]) or not are_plain(xs, peers):
            return (yield from Method.exchange_all(self, xs, states, peers))
        like = peers.like
        sizes = tuple([x.numel() for x in xs])
        key = (self, backends.backend(), sizes, peers.names, peers.memories is None, like.rank, like.world, like.seed)
        plan: BucketPlan | None = workspace.kept.get(key)
        message = None if plan is None else plan.take(workspace, xs[0].device)
        fine = None if plan is None or message is None else self._encode_bound(xs, peers, plan, message)
        if fine is None:
            made, fine = self._write(xs, peers, None if plan is None or message is None else plan.places(message))
            if plan is None or message is None or not plan.fits(made):
                plan = workspace.kept[key] = self._plan(sizes, made, peers)
                message = plan.take(workspace, xs[0].device)
            put(made, plan.places(message))
        assert plan is not None
        assert message is not None
        wires.write_bucket_headers(message, plan.words, fine, like.step)
        room = workspace.take((like.world, plan.size), torch.uint8, message.device)
        yield from self._gather(message, room, plan, like.rank)
        everywhere = wires.read_bucket_headers(room, plan.words, like.step)
        everywhere = self._decode_all(xs, plan.gathered(room), everywhere, plan, peers)
        rests: Sequence[Tensor | None] = peers.rests or [None] * len(xs)
        return [
            Exchanged(x, rest, None) if fine else Exchanged.poisoned(x, None)
            for x, rest, fine in zip(xs, rests, everywhere, strict=True)
        ]

    def _prepare(
        self, xs: Sequence[Tensor], peers: Peers, plan_of: Callable[[Sequence[int], torch.device], P]
    ) -> Prepared[P] | None:
        """The bucket of these tensors, if it can go by few launches."""
        workspace = peers.like.lent.workspace
        if workspace is None:
            return None
        return prepare(
            self, self.compressor, lambda peer: self._stream(self.compressor, peer, 0), xs, peers, workspace, plan_of
        )

    def _plan(self, sizes: Sequence[int], made: Sequence[Tensor], peers: Peers) -> BucketPlan:
        """The plan for tensors of n numbers each, whose wires ``[1, w]`` are these."""
        plan, compressor = BucketPlan([kind_of(wire) for wire in made]), self.compressor
        rank = None if compressor.randomness == "shared" else peers.like.rank
        widths = [kind_of(wire)[0] for wire in made]
        plan.encoder = BoundEncoder(
            compressor, sizes, widths, peers.memories is not None, lambda i: self._stream(compressor, peers[i], 0), rank
        )
        return plan

    def _encode_bound(
        self, xs: Sequence[Tensor], peers: Peers, plan: BucketPlan, message: Tensor
    ) -> Sequence[bool] | None:
        """Encodes xs, of any shapes, plus what memories lend into ``message [s]``: whether each was finite. None: nothing was
        done.
        """
        if plan.encoder is None:
            return None
        memories, rests = ([tensor.data_ptr() for tensor in each or ()] for each in (peers.memories, peers.rests))
        return plan.encoder.run([x.data_ptr() for x in xs], plan.addresses(message), peers.like.step, memories, rests)

    def _write(
        self, xs: Sequence[Tensor], peers: Peers, places: Sequence[Tensor] | None
    ) -> tuple[list[Tensor], Sequence[bool]]:
        """The wires ``[1, w]`` of xs, of any shapes, plus what memories lend, in these places if the compressor writes where
        it is told to; and whether they were finite.
        """
        compressor, made, finite = self.compressor, [], []
        try:
            for i, (x, peer) in enumerate(zip(xs, peers, strict=True)):
                lent, place.wire = peer.lent, None if places is None else places[i]
                memory = None if lent.memory is None else lent.memory.view(1, -1)
                rest = None if lent.rest is None else lent.rest.view(1, -1)
                wire, fine = compressor.encode_(x.view(1, -1), self._stream(compressor, peer, 0), memory, rest)
                made.append(wire)
                finite.append(bool(fine))
        finally:
            place.wire = None
        return made, finite

    def _decode_all(
        self, xs: Sequence[Tensor], received: list[Gathered], finite: list[bool], plan: BucketPlan, peers: Peers
    ) -> list[bool]:
        """Sets xs, of any shapes, to the aggregates of these wires, where all ranks saw finite numbers: whether each is."""
        like, name = peers.like, self.compressor.id
        scale = 1.0 if self.compressor.aggregation == "majority" else 1 / like.world
        if plan.decoder[0] is not received:
            sizes = [x.numel() for x in xs]
            calls = bind_decoder(self.compressor, sizes, received, scale, lambda i: peers[i].shared(name))
            plan.decoder = (received, calls)
        calls = plan.decoder[1]
        if calls is not None and all(finite):
            calls.put(ROWS, [x.data_ptr() for x in xs])
            if not any(calls.run(like.step)):
                return finite
        out = []  # one by one, which also tells what is wrong with a wire
        for i, (x, gathered, fine) in enumerate(zip(xs, received, finite, strict=True)):
            if fine:
                row = x.view(1, -1)
                self.compressor.aggregate_(gathered, row, scale, peers[i].shared(name))
                fine = not self.compressor.overflows or bool(all_finite(row))
            out.append(fine)
        return out
