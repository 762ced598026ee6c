"""A bucket whose tensors have a row for each rank: one all-to-all, on an accelerator by as many launches as one tensor takes.

It is a reduce-scatter, and the first of two hops. Nothing here asks the host of an accelerator.

Letters: T tensors of W rows of c_t numbers, of which each of W ranks averages one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grace import wire as wires
from grace.collectives import AllToAll, Exchange
from grace.communicators.bucket import BucketPlan
from grace.communicators.many import agree, explaining, takes_bucket
from grace.contract.compressor import Compressor
from grace.contract.method import Exchanged, hold_everywhere_all, plain_rows
from grace.contract.peer import Peer, Peers
from grace.contract.together import can_go_together
from grace.contract.workspace import Workspace, take_rooms
from grace.flags.finite import flags, on_host
from grace.kernels.tensor_list import TensorList, poison_many
from grace.random import Stream


class RowTables:
    """Positions of the tensors of a bucket, as W rows each.

    Args:
        widths: bytes of the wires of their rows. sizes: c of each.
        streams: of each tensor, on this hop. averages: on the next one.
        device: of all of them. world: W.

    plan: a row of the message. rows: what is encoded. averages: of this rank's row of each tensor. places: for each row the
    byte of the whole message where its wire begins.
    """

    def __init__(
        self,
        widths: Sequence[int],
        sizes: Sequence[int],
        streams: Sequence[Stream],
        averages: Sequence[Stream],
        device: torch.device,
        world: int,
    ):
        self.plan = BucketPlan(widths, device)
        self.places = [row * self.plan.size + begin for begin in self.plan.wires for row in range(world)]
        self.rows = TensorList(sizes, self.places, streams, device, world)
        self.averages = TensorList(sizes, self.plan.wires, averages, device)

    def exchange(
        self, compressor: Compressor, stream: Stream, peers: Peers, workspace: Workspace, *, clear: bool
    ) -> Exchange[Tensor]:
        """Fills the averages; ``[T]`` bool: which mean anything. The others are NaN, or with ``clear`` 0. ``stream``: of the
        first tensor.
        """
        plan, step, W = self.plan, peers.like.step, peers.like.world
        message = workspace.take((W, plan.size), torch.uint8, self.rows.device)
        plan.clear_padding(message)
        finite = compressor.encode_many_(message.view(-1), self.rows, stream)
        wires.write_bucket_flags(message, plan.words, finite, step)
        answer = yield AllToAll(message, parts=plan.parts)
        wires.check_shape("wires", answer, message.shape)
        theirs = answer.contiguous()
        scale = 1.0 if compressor.aggregation == "majority" else 1 / W
        legal = compressor.aggregate_many_(theirs, self.averages, scale, stream)
        explain = explaining(compressor, plan, theirs, self.averages, scale, peers)
        return agree(
            theirs,
            plan.words,
            legal,
            self.averages,
            peers,
            clear=clear,
            overflows=compressor.overflows,
            explain=explain,
        )


@dataclass(frozen=True, slots=True)
class RowBucket:
    """A bucket of rows that goes by few launches, and where its tensors are."""

    compressor: Compressor
    stream: Stream
    tables: RowTables
    workspace: Workspace


def prepare_rows(
    compressor: Compressor,
    stream: Callable[[Compressor, Peer, int], Stream],
    rows: Sequence[Tensor],
    peers: Peers,
) -> RowBucket | None:
    """The bucket of these rows, ``[W, c]`` each, if kernels for many tensors can take it; None: they go otherwise. They may be
    parts of the rows of one matrix, and narrower than float32: then they are read where they are, but on the host, which reads
    copies.
    """
    like, workspace, device = peers.like, peers.like.lent.workspace, rows[0].device
    if workspace is None or not takes_bucket(compressor, device):
        return None
    rows = [plain_rows(x) for x in rows] if on_host(device) else rows
    if not can_go_together(rows, peers, rows=like.world, anywhere=True):
        return None
    sizes = tuple([x.shape[1] for x in rows])
    key = (RowTables, compressor, device, sizes, peers.names, like.rank, like.world, like.seed)
    tables: RowTables | None = workspace.kept.get(key)
    if tables is None:
        widths = [compressor.facts(c).payload for c in sizes]
        if None in widths:
            return None
        streams = [stream(compressor, peer, 0) for peer in peers]
        tables = RowTables([width or 0 for width in widths], sizes, streams, streams, device, like.world)
    stride = 0 if all(x.is_contiguous() for x in rows) else rows[0].stride(0)
    there = tables.rows.point(rows, peers.memories, peers.rests, stride=stride)
    if compressor.takes_work and compressor.handles_many:
        work: Sequence[Tensor] = peers.rests or rows
        if work is rows and (stride or rows[0].dtype is not torch.float32):
            work = take_rooms(workspace, [x.numel() for x in rows], device)
        there = there and tables.rows.lend(work)
    if not there or not tables.averages.point(take_rooms(workspace, sizes, device)):
        return None
    workspace.kept[key] = tables
    return RowBucket(compressor, stream(compressor, peers[0], 0), tables, workspace)


def scatter_rows(
    bucket: RowBucket, rows: Sequence[Tensor], states: Sequence[Any], peers: Peers
) -> Exchange[list[Exchanged[Any]]]:
    """The results of all tensors: means ``[c]`` of this rank's rows, valid until the exchange has ended."""
    tables, compressor = bucket.tables, bucket.compressor
    finite = yield from tables.exchange(compressor, bucket.stream, peers, bucket.workspace, clear=False)
    if compressor.overflows:  # each rank has decoded other rows
        finite = yield from hold_everywhere_all(finite)
        poison_many(finite, tables.averages)
    rests: Sequence[Tensor | None] = peers.rests or [None] * len(rows)
    each = zip(tables.averages.xs, rests, states, flags(finite), strict=True)
    return [Exchanged(average[0], rest, state, flag) for average, rest, state, flag in each]
