"""The tensors of a bucket in two hops: one all-to-all, one all-gather, and one native call for what happens to all of them.

Only for compressors whose calls are known beforehand, see :mod:`grace.communicators.bound`.

Letters: T tensors, the i-th of n_i numbers, of which each of W ranks averages a chunk of c_i = ceil(n_i / W).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from grace import wire as wires
from grace.collectives import AllGather, Exchange
from grace.communicators.bound import BoundEncoder, bind_decoder
from grace.communicators.bound_rows import RowPlan, begins_of
from grace.communicators.server_debts import HostDebts
from grace.compute import backends
from grace.contract.compressor import Compressor
from grace.contract.method import Exchanged
from grace.contract.peer import Peer, Peers
from grace.contract.workspace import Workspace
from grace.kernels.call_table import ROWS, CallTable, possible
from grace.kernels.finite.many import Finiteness, Sums
from grace.random import Stream
from grace.wire import Gathered

Hops: TypeAlias = tuple[Compressor, Compressor]
Streams: TypeAlias = Callable[[Compressor, Peer, int], Stream]  # of a hop


class ScatterPlan:
    """Plan of a bucket: what stays the same at every step.

    Args:
        hops: the compressors of both hops. streams: their random numbers.
        sizes: n of each tensor. peers: who exchanges them. serves: whether there is a server memory.

    first: the first hop, of tensors as rows.
    """

    def __init__(self, hops: Hops, streams: Streams, sizes: Sequence[int], peers: Peers, serves: bool):
        like, (_, second) = peers.like, hops
        W, keep = like.world, peers.memories is not None
        self.sizes, self.chunks = list(sizes), [math.ceil(n / W) for n in sizes]
        self.odd = [i for i, (n, c) in enumerate(zip(sizes, self.chunks, strict=True)) if n != W * c]
        self.first = RowPlan(hops[0], functools.partial(_stream, streams, hops[0], peers, 0), self.chunks, peers)
        self.bucket = self.first.bucket
        known = [hops[0].facts(c).payload or 0 for c in self.chunks]
        rank = None if hops[0].randomness == "shared" else like.rank
        of_second = functools.partial(_stream, streams, second, peers, 1)
        self.second = BoundEncoder(second, self.chunks, known, keep or serves, of_second, rank, again=True)
        self._second, self._peers = second, peers
        odd = [sizes[i] for i in self.odd]
        self.pad, self.copy = Sums(odd, memory=keep), Sums(odd, memory=False)
        self.finite = Finiteness(self.chunks)
        self.places = begins_of([W * c for c in self.chunks])  # of padded tensors, in numbers
        self._decoder: tuple[tuple[int, ...], list[Gathered], CallTable | None] = ((), [], None)

    @property
    def bound(self) -> bool:
        """True if all calls are known, as far as has been seen."""
        return self.first.bound and (not self._decoder[0] or self._decoder[2] is not None)

    def bind(self, rooms: tuple[Tensor, Tensor], step: int) -> bool:
        """True if everything that follows is known: encoders at this step, and decoders of wires in rooms ``[W, s]`` each."""
        where = (rooms[1].data_ptr(), *rooms[1].shape)
        if self.first.bind(rooms[0], step) and self._decoder[0] != where:
            W, begins = len(rooms[0]), self.bucket.wires
            final = [
                Gathered(rooms[1][w : w + 1], begin - wires.HEADER, gathered.width)
                for begin, gathered in zip(begins, self.bucket.gathered(rooms[0]), strict=True)
                for w in range(W)
            ]
            twice = [c for c in self.chunks for _ in range(W)]
            out = bind_decoder(self._second, twice, final, 1.0, lambda i: self._peers[i // W].shared(self._second.id))
            self._decoder = (where, final, out)
        return self.bound and self.first.bind(rooms[0], step) and self.second.ready(step)

    def find_finite(self, chunks: Sequence[Tensor], finite: Sequence[bool]) -> list[bool]:
        """True for each of the chunks, ``[c]``, that is finite throughout, and was ``finite`` before."""
        fine = self.finite.run([chunk.data_ptr() for chunk in chunks])
        return [now and was for now, was in zip(fine, finite, strict=True)]

    def decode(self, finite: Sequence[bool], means: list[Tensor], peers: Peers) -> None:
        """Sets means, ``[W c]`` each, to what the ranks say of their chunks; others are left as they are."""
        _, final, calls = self._decoder
        assert calls is not None
        W = len(final) // len(means)
        if all(finite):
            steps = [4 * c for c in self.chunks]
            firsts = [mean.data_ptr() for mean in means]
            calls.put(ROWS, [at + w * by for at, by in zip(firsts, steps, strict=True) for w in range(W)])
            if not any(calls.run(peers.like.step).tolist()):
                return
        for i, (mean, fine) in enumerate(zip(means, finite, strict=True)):
            for w, row in enumerate(mean.view(W, 1, -1) if fine else ()):
                self._second.aggregate_(final[i * W + w], row, 1.0, peers[i].shared(self._second.id))


def open_scattered(
    hops: Hops,
    streams: Streams,
    xs: Sequence[Tensor],
    peers: Peers,
    workspace: Workspace,
    states: Sequence[Any] | None,
) -> Exchange[list[Exchanged[Any]]] | None:
    """The exchange of tensors that are float32, contiguous and in the processor's memory; None if their calls are not known.
    ``hops``, ``streams``: as in :class:`ScatterPlan`. ``states``: of the server memory, if there is one.
    """
    if not possible():
        return None
    like, sizes, serves = peers.like, tuple([x.numel() for x in xs]), states is not None
    key = (ScatterPlan, hops, backends.backend(), sizes, peers.names, peers.memories is None, serves,
           like.rank, like.world, like.seed)  # fmt: skip
    plan: ScatterPlan | None = workspace.kept.get(key)
    if plan is None:
        plan = workspace.kept[key] = ScatterPlan(hops, streams, sizes, peers, serves)
    debts = None if states is None else HostDebts(states, like.lr)
    if debts is not None and not debts.fit(plan.chunks):
        return None
    shape = (like.world, plan.bucket.size)
    rooms = (_take(workspace, shape, torch.uint8), _take(workspace, shape, torch.uint8))
    return _exchange(plan, xs, peers, workspace, rooms, debts) if plan.bind(rooms, like.step) else None


def _exchange(
    plan: ScatterPlan,
    xs: Sequence[Tensor],
    peers: Peers,
    workspace: Workspace,
    rooms: tuple[Tensor, Tensor],
    debts: HostDebts | None,
) -> Exchange[list[Exchanged[Any]]]:
    bucket, step, W, rank = plan.bucket, peers.like.step, peers.like.world, peers.like.rank
    rows, keep = [x.data_ptr() for x in xs], peers.memories is not None
    memories = [0] * len(xs) if peers.memories is None else [memory.data_ptr() for memory in peers.memories]
    rests = [] if peers.rests is None else [rest.data_ptr() for rest in peers.rests]
    padded = _take(workspace, plan.places[-1]) if plan.odd else None
    given, added, left = list(rows), list(memories), list(rests)
    if padded is not None:
        first = padded.zero_().data_ptr()
        there = [first + 4 * plan.places[i] for i in plan.odd]
        plan.pad.run([rows[i] for i in plan.odd], [memories[i] for i in plan.odd] if keep else 0, there)
        for i, at in zip(plan.odd, there, strict=True):
            given[i], added[i] = at, 0
            if keep:
                left[i] = at
    everywhere, flat = yield from plan.first.exchange(given, added, left, peers, workspace, rooms[0])
    chunks = [flat.data_ptr() + 4 * begin for begin in plan.first.parts[:-1]]
    averages = flat.split_with_sizes(plan.chunks)
    if debts is not None:
        debts.add(averages)
    message = bucket.take(workspace, flat.device)
    if plan.second.run(chunks, bucket.addresses(message), step, chunks, chunks) is None:
        raise MemoryError("kernels: no memory to encode the chunks of a bucket")
    if debts is not None:  # the chunks are now what the server memory keeps
        everywhere = plan.find_finite(averages, everywhere)
    elif keep:  # the chunks are now what the second rounding has dropped, which is the owner's debt
        everywhere = _keep_debts(plan, everywhere, averages, padded, peers.rests or (), rank, W)
    wires.write_bucket_headers(message, bucket.words, everywhere, step)
    answer = yield AllGather(message, into=rooms[1], parts=bucket.parts)  # [W, s]
    wires.check_shape("wires", answer, rooms[1].shape)
    if answer.data_ptr() != rooms[1].data_ptr():
        rooms[1].copy_(answer)
    everywhere = wires.read_bucket_headers(rooms[1], bucket.words, step)

    means = list(xs)
    if padded is not None:
        if keep:  # where the rests are
            plan.copy.run(there, 0, [rests[i] for i in plan.odd])
        for i in plan.odd:
            means[i] = padded[plan.places[i] : plan.places[i + 1]]
    plan.decode(everywhere, means, peers)
    if padded is not None:
        plan.copy.run(there, 0, [rows[i] for i in plan.odd])
    kept: Sequence[Tensor | None] = peers.rests or [None] * len(xs)
    states = [None] * len(xs) if debts is None else debts.commit(everywhere, xs, averages, peers.like)
    return [
        Exchanged(x, rest, state) if fine else Exchanged.poisoned(x, state)
        for x, rest, state, fine in zip(xs, kept, states, everywhere, strict=True)
    ]


def _keep_debts(
    plan: ScatterPlan,
    finite: list[bool],
    debts: Sequence[Tensor],
    padded: Tensor | None,
    rests: Sequence[Tensor],
    rank: int,
    world: int,
) -> list[bool]:
    """Adds W times my second roundings to my rests of my chunks: which are finite. One worker's share of a mean is 1/W."""
    parts = []
    for i, (rest, c) in enumerate(zip(rests, plan.chunks, strict=True)):
        if padded is not None and plan.sizes[i] != world * c:
            begin = plan.places[i] + rank * c
            parts.append(padded[begin : begin + c])
        else:
            parts.append(rest.view(-1)[rank * c : (rank + 1) * c])
    torch._foreach_add_(parts, list(debts), alpha=world)
    return plan.find_finite(parts, finite)


def _stream(streams: Streams, compressor: Compressor, peers: Peers, hop: int, i: int) -> Stream:
    return streams(compressor, peers[i], hop)


def _take(workspace: Workspace, shape: int | tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    return workspace.take(shape, dtype, torch.device("cpu"))
