"""A bucket whose tensors have a row for each rank, in the processor's memory: one all-to-all, and one native call for what
happens to all of them. It is a reduce-scatter, and the first of two hops.

Only for compressors whose calls are known beforehand, see :mod:`grace.communicators.bound`.

Letters: T tensors of W rows of c_i numbers, of which each of W ranks averages one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from grace import wire as wires
from grace.collectives import AllToAll, Exchange
from grace.communicators.bound import BoundEncoder, bind_decoder
from grace.communicators.bucket import BucketPlan, are_plain
from grace.compute import backends
from grace.contract.compressor import Compressor
from grace.contract.method import Exchanged
from grace.contract.peer import Peer, Peers
from grace.contract.workspace import Workspace
from grace.kernels.call_table import ROWS, CallTable, possible
from grace.random import Stream
from grace.wire import Gathered

_CPU = torch.device("cpu")


class RowPlan:
    """Plan of a bucket of rows: what stays the same at every step.

    Args:
        compressor: of the rows. streams: the random numbers of each tensor. chunks: c of each. peers: who exchanges them.

    ``bound``: whether all calls are known, as far as has been seen. parts: where the average of each tensor begins.
    """

    def __init__(
        self, compressor: Compressor, streams: Callable[[int], Stream], chunks: Sequence[int], peers: Peers
    ) -> None:
        like, widths = peers.like, [compressor.facts(c).payload for c in chunks]
        known = [width or 0 for width in widths]
        self.bound = None not in widths
        self.chunks, self.parts = list(chunks), begins_of(chunks)
        self.bucket = BucketPlan([(width, torch.uint8) for width in known])
        rank = None if compressor.randomness == "shared" else like.rank
        keep = peers.memories is not None
        self._encoder = BoundEncoder(compressor, self.chunks, known, keep, streams, rank, rows=like.world)
        self._compressor, self._peers = compressor, peers
        self._scale = 1.0 if compressor.aggregation == "majority" else 1 / like.world
        self._decoder: tuple[tuple[int, ...], list[Gathered], CallTable | None] = ((), [], None)

    def bind(self, room: Tensor, step: int) -> bool:
        """True if everything that follows is known: the encoder at this step, and the decoder of wires in room ``[W, s]``."""
        where = (room.data_ptr(), *room.shape)
        if self.bound and self._decoder[0] != where:
            theirs, name = self.bucket.gathered(room), self._compressor.id
            shared = self._peers
            calls = bind_decoder(self._compressor, self.chunks, theirs, self._scale, lambda i: shared[i].shared(name))
            self._decoder = (where, theirs, calls)
            self.bound = calls is not None
        return self.bound and self._encoder.ready(step)

    def exchange(
        self, rows: list[int], memories: list[int], rests: list[int], peers: Peers, workspace: Workspace, room: Tensor
    ) -> Exchange[tuple[list[bool], Tensor]]:
        """Averages of my rows ``[sum c]``, and which tensors all ranks have seen finite; those of others are 0. Rows, memories
        (0: none) and rests are given by their addresses.

        Raises:
            MemoryError: there is no memory to encode them.
        """
        bucket, step = self.bucket, peers.like.step
        message = workspace.take(tuple(room.shape), torch.uint8, _CPU)
        bucket.clear_padding(message)
        fine = self._encoder.run(rows, bucket.addresses(message), step, memories, rests, stride=bucket.size)
        if fine is None:
            raise MemoryError("kernels: no memory to encode the tensors of a bucket")
        wires.write_bucket_headers(message, bucket.words, fine, step)
        answer = yield AllToAll(message, parts=bucket.parts)
        wires.check_shape("wires", answer, room.shape)
        room.copy_(answer)
        everywhere = wires.read_bucket_headers(room, bucket.words, step)
        flat = workspace.take(self.parts[-1], torch.float32, _CPU)
        self.average(everywhere, flat, peers)
        return everywhere, flat

    def average(self, finite: Sequence[bool], flat: Tensor, peers: Peers) -> None:
        """Sets the chunks of ``flat [sum c]`` to the averages of the wires received; to 0 unless finite."""
        _, theirs, calls = self._decoder
        assert calls is not None
        if all(finite):
            first = flat.data_ptr()
            calls.put(ROWS, [first + 4 * begin for begin in self.parts[:-1]])
            if not any(calls.run(peers.like.step).tolist()):
                return
        for i, (gathered, fine) in enumerate(zip(theirs, finite, strict=True)):
            row = flat[self.parts[i] : self.parts[i + 1]][None]
            if fine:
                self._compressor.aggregate_(gathered, row, self._scale, peers[i].shared(self._compressor.id))
            else:
                row.fill_(0.0)


def open_rows(
    compressor: Compressor,
    streams: Callable[[Compressor, Peer, int], Stream],
    rows: Sequence[Tensor],
    states: Sequence[Any],
    peers: Peers,
) -> Exchange[list[Exchanged[Any]]] | None:
    """The reduce-scatter of rows ``[W, c]`` that are float32, contiguous and in the processor's memory; None if they are not,
    or their calls are not known.
    """
    like, workspace = peers.like, peers.like.lent.workspace
    if workspace is None or compressor.varies or compressor.overflows or not are_plain(rows, peers) or not possible():
        return None
    if any(x.ndim != 2 or len(x) != like.world for x in rows):
        return None
    chunks = tuple([x.shape[1] for x in rows])
    key = (RowPlan, compressor, backends.backend(), chunks, peers.names, peers.memories is None, like.rank, like.world,
           like.seed)  # fmt: skip
    plan: RowPlan | None = workspace.kept.get(key)
    if plan is None:
        plan = workspace.kept[key] = RowPlan(compressor, lambda i: streams(compressor, peers[i], 0), chunks, peers)
    room = workspace.take((like.world, plan.bucket.size), torch.uint8, _CPU)
    return _scatter(plan, rows, states, peers, workspace, room) if plan.bind(room, like.step) else None


def _scatter(
    plan: RowPlan, rows: Sequence[Tensor], states: Sequence[Any], peers: Peers, workspace: Workspace, room: Tensor
) -> Exchange[list[Exchanged[Any]]]:
    given, memories, rests = ([x.data_ptr() for x in each or ()] for each in (rows, peers.memories, peers.rests))
    finite, flat = yield from plan.exchange(given, memories, rests, peers, workspace, room)
    means = flat.split_with_sizes(plan.chunks)
    left: Sequence[Tensor | None] = peers.rests or [None] * len(rows)
    return [
        Exchanged(mean, rest, state) if fine else Exchanged.poisoned(x[peers.like.rank], state)
        for x, mean, rest, state, fine in zip(rows, means, left, states, finite, strict=True)
    ]


def begins_of(sizes: Sequence[int]) -> list[int]:
    """Start of each of these, one after the other, and end of the last one."""
    begins = [0]
    for size in sizes:
        begins.append(begins[-1] + size)
    return begins
