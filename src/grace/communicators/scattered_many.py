"""Two hops of the tensors of a bucket: the same bytes, means and memories as one by one, on an accelerator by as many launches
as one of them takes.

Nothing here asks the host of an accelerator. A tensor is W rows, one for each rank that averages a chunk of it; those that do
not divide by W are padded in rooms, all of them at once.

Letters: T tensors, the i-th of n_i numbers, of which each of W ranks averages a chunk of c_i = ceil(n_i / W).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grace import wire as wires
from grace.collectives import AllGather, Exchange
from grace.communicators.many import agree, explaining, give_back, takes_bucket
from grace.communicators.rows import RowTables
from grace.communicators.server_debts import ServerDebts
from grace.contract.compressor import Compressor
from grace.contract.lent import Lent
from grace.contract.method import Exchanged
from grace.contract.peer import Peer, Peers
from grace.contract.together import can_go_together
from grace.contract.workspace import Workspace, take_rooms
from grace.flags.finite import on_host
from grace.kernels.multi_tensor import fetch_many, finite_many, pad_many
from grace.kernels.tensor_list import Rooms, TensorList
from grace.random import Stream

_TURNS = 2  # whose parts are kept: those of a memory and its successor
_NONE = Rooms()


class ScatterTables:
    """Positions of the tensors of a bucket, as W rows and as a whole.

    Args:
        widths: bytes of the wires of their chunks. sizes: n of each.
        streams: of both hops, for each tensor.
        like: a tensor, of any shape. rank, world: whose tables these are. keep: whether there are memories.
        works: whether both hops take work. serves: whether there is a server memory.

    first: the tensors as rows that are encoded, and averages of this rank's chunks. own, parts: its chunks of the rests.
    last: the means, as rows. whole: the tensors. means: rooms for them, if they are narrower than float32. odd:
    those that are padded, and odd_rooms. fetched: what comes from rooms in the end, and its rooms, ``fetched_rooms``.
    debts: the server memory, if there is one.
    """

    def __init__(
        self,
        widths: Sequence[int],
        sizes: Sequence[int],
        streams: Sequence[Sequence[Stream]],
        like: Tensor,
        rank: int,
        world: int,
        keep: bool,
        works: tuple[bool, bool],
        serves: bool,
    ):
        device = like.device
        self.rank, self.world, self.works = rank, world, works
        self.chunk_sizes = [-(-n // world) for n in sizes]
        self.padded_sizes = [c * world for c in self.chunk_sizes]
        self.first = RowTables(widths, self.chunk_sizes, streams[0], streams[1], device, world)
        self.last = TensorList(self.chunk_sizes, self.first.places, streams[1], device, world)
        self.own = TensorList(self.chunk_sizes, (), (), device)
        self.parts = Rooms()
        self._parts: dict[int, tuple[Sequence[Tensor], Rooms, list[int], Rooms]] = {}
        starts = [rank * c for c in self.chunk_sizes]
        self.debts = ServerDebts(self.chunk_sizes, starts, world, device) if serves else None
        self.whole = TensorList(sizes, (), (), device)
        self.means = None if like.dtype is torch.float32 else TensorList(self.padded_sizes, (), (), device)
        self.keep = keep
        self.odd_places = [t for t, n in enumerate(sizes) if n % world]
        odd, rooms = ([group[t] for t in self.odd_places] for group in (sizes, self.padded_sizes))
        self.odd, self.odd_rooms = TensorList(odd, (), (), device), TensorList(rooms, (), (), device)
        parts = int(keep) + (self.means is None)  # rests, and means
        self.fetched, self.fetched_rooms = (
            TensorList(odd * parts, (), (), device),
            TensorList(rooms * parts, (), (), device),
        )

    def point(
        self,
        xs: Sequence[Tensor],
        memories: Sequence[Tensor] | None,
        rests: Sequence[Tensor] | None,
        workspace: Workspace,
        states: Sequence[Any],
        lent: Lent,
    ) -> bool:
        """From now on these are the tensors, of any shapes, and their states; see :meth:`TensorList.point`."""
        odd, device = self.odd_places, self.whole.device
        entry = take_rooms(workspace, self.odd_rooms.sizes, device, xs[0].dtype) if odd else _NONE
        rows = self._padded(xs, entry)
        means = rows if self.means is None else take_rooms(workspace, self.padded_sizes, device)
        chunks = take_rooms(workspace, self.chunk_sizes, device)
        fetched = [(xs[t], rows[t]) for t in odd] if self.means is None else []
        added = left = spare = padded = None
        work: Sequence[Tensor] = means
        if memories is not None and rests is not None:
            spare = room = take_rooms(workspace, self.odd_rooms.sizes, device) if odd else _NONE
            if odd and (self.works[0] or on_host(device)):  # native kernels may read a memory after its rest is written
                room = take_rooms(workspace, self.odd_rooms.sizes, device)
            added, left = self._padded(memories, spare), self._padded(rests, room)
            padded, self.parts = [memories[t] for t in odd], self._parts_of(rests, room)
            fetched += [(rests[t], left[t]) for t in odd]
            work = left
        keeps = left is not None or self.debts is not None  # what the second rounding drops
        again = take_rooms(workspace, self.chunk_sizes, device) if self.works[1] and keeps else chunks
        return (
            self.whole.point(xs, None, None if self.means is None else rests)
            and self.first.rows.point(rows, added, left)
            and self.last.point(means)
            and self.first.averages.point(chunks, None, chunks if keeps else None)
            and (not self.works[0] or self.first.rows.lend(work))
            and (not self.works[1] or self.first.averages.lend(again))
            and (left is None or self.own.point(self.parts))
            and (self.means is None or self.means.point(means))
            and (not odd or self.odd.point([xs[t] for t in odd], padded))
            and (not odd or self.odd_rooms.point(entry, spare))
            and (not fetched or self.fetched.point([x for x, _ in fetched]))
            and (not fetched or self.fetched_rooms.point([room for _, room in fetched]))
            and (self.debts is None or self.debts.point(chunks, states, lent))
        )

    def _parts_of(self, rests: Sequence[Tensor], rooms: Rooms) -> Rooms:
        """Chunks ``[1, c]`` of this rank of the rests, of any shapes, or of the rooms of those that are padded: the same for
        rests that take turns and have stayed where they were.
        """
        there = [rest.data_ptr() for rest in rests]
        known = self._parts.get(id(rests))
        if known is not None and known[0] is rests and known[1] is rooms and known[2] == there:
            return known[3]
        parts = Rooms([rest.view(self.world, 1, -1)[self.rank] for rest in self._padded(rests, rooms)])
        if type(rests) is tuple:  # they take turns
            if len(self._parts) == _TURNS:
                self._parts.clear()
            self._parts[id(rests)] = rests, rooms, there, parts
        return parts

    def _padded(self, tensors: Sequence[Tensor], rooms: Rooms) -> list[Tensor]:
        """The tensors, and rooms instead of those that are padded."""
        out = list(tensors)
        for t, room in zip(self.odd_places, rooms, strict=True):
            out[t] = room
        return out


@dataclass(frozen=True, slots=True)
class ScatterBucket:
    """A bucket that goes by few launches: the compressors and the first streams of both hops, and where its tensors are."""

    hops: tuple[Compressor, Compressor]
    streams: tuple[Stream, Stream]
    tables: ScatterTables
    workspace: Workspace


def prepare_scattered(
    hops: tuple[Compressor, Compressor],
    stream: Callable[[Compressor, Peer, int], Stream],
    xs: Sequence[Tensor],
    states: Sequence[Any],
    peers: Peers,
    workspace: Workspace,
    *,
    serves: bool,
) -> ScatterBucket | None:
    """The bucket of these tensors, of any shapes, if kernels for many tensors can take it; None: they go otherwise. With
    ``serves`` the states are server memories.
    """
    if not all(takes_bucket(hop, xs[0].device) for hop in hops) or not can_go_together(xs, peers, anywhere=True):
        return None
    sizes, like, keep = tuple([x.numel() for x in xs]), peers.like, peers.keep_rests
    rank, world, first = like.rank, like.world, peers[0]
    key = (ScatterBucket, hops, xs[0].device, xs[0].dtype, sizes, peers.names, rank, world, like.seed, keep, serves)
    bucket: ScatterBucket | None = workspace.kept.get(key)
    if bucket is None:
        widths = [hops[0].facts(-(-n // world)).payload for n in sizes]
        if None in widths:
            return None
        streams = [[stream(hop, peer, number) for peer in peers] for number, hop in enumerate(hops)]
        works = (hops[0].takes_work and hops[0].handles_many, hops[1].takes_work and hops[1].handles_many)
        tables = ScatterTables(
            [width or 0 for width in widths], sizes, streams, xs[0], rank, world, keep, works, serves
        )
        bucket = ScatterBucket(hops, (streams[0][0], streams[1][0]), tables, workspace)
    if not bucket.tables.point(xs, peers.memories, peers.rests, workspace, states, like.lent):
        return None
    workspace.kept[key] = bucket
    return ScatterBucket(hops, (stream(hops[0], first, 0), stream(hops[1], first, 1)), bucket.tables, workspace)


def exchange_scattered(bucket: ScatterBucket, xs: Sequence[Tensor], peers: Peers) -> Exchange[list[Exchanged[Any]]]:
    """The results of all tensors, of any shapes, whose means are written over them."""
    tables, (first, second), workspace, peer = bucket.tables, bucket.hops, bucket.workspace, peers.like
    plan, chunks, W, device, step = tables.first.plan, tables.first.averages, peer.world, xs[0].device, peer.step
    storage = chunks.xs[0]
    if tables.odd_places:
        pad_many(storage, tables.odd, tables.odd_rooms)
    finite = yield from tables.first.exchange(first, bucket.streams[0], peers, workspace, clear=True)  # [T]
    if tables.debts is not None:
        tables.debts.add(peer.lr)

    message = plan.take(workspace, device)
    second.encode_many_(message, chunks, bucket.streams[1])
    if tables.debts is not None:  # the chunks are now what the server memory keeps
        finite = finite_many(finite, chunks)
    elif tables.keep:  # the chunks are now what the second rounding has dropped, which is the owner's debt
        torch._foreach_add_(tables.parts, list(chunks.xs), alpha=W)  # one worker's share of a mean is 1/W
        finite = finite_many(finite, tables.own)
    wires.write_bucket_flags(message, plan.words, finite, step)
    room = workspace.take((W, plan.size), torch.uint8, device)
    answer = yield AllGather(message, into=room, parts=plan.parts)  # [W, s]
    wires.check_shape("wires", answer, room.shape)
    theirs = answer.contiguous()
    legal = second.aggregate_many_(theirs.view(1, -1), tables.last, 1.0, bucket.streams[1])
    if len(tables.fetched):
        fetch_many(storage, tables.fetched_rooms, tables.fetched)
    explain = explaining(second, plan, theirs, chunks, 1.0, peers, apart=True)
    fine = agree(
        theirs, plan.words, legal, tables.whole, peers, tables.means, overflows=second.overflows, explain=explain
    )
    states = None if tables.debts is None else tables.debts.commit(fine, xs, peer.lr, peer.lent)
    return give_back(fine, xs, peers, states)
