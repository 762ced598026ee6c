"""The tensors of a bucket that are rounded to one table of integers, on an accelerator, by few launches: thc.

Nothing here asks the host. Letters: T tensors; W workers; A the largest number of a block that is sent unclipped.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grace import wire as wires
from grace.collectives import AllGather, AllReduce, AllToAll, Exchange, Parts
from grace.communicators.many import finish, refuse_illegal
from grace.contract.method import Exchanged
from grace.contract.peer import Peers
from grace.contract.together import can_go_together
from grace.contract.workspace import take_rooms
from grace.kernels import (
    TensorList,
    decode_entries_many,
    encode_entries_many,
    rotate_norms_many,
    sum_entries_many,
)
from grace.kernels.lookup_table import Chunks
from grace.methods.common.integer_table import bounds_of, count_sum_bits


@dataclass(frozen=True, slots=True)
class TableBucket:
    """Tensors of a bucket, where what is sent of them lies, and rooms for means that will be rounded.

    table: T; block: h; reach: A in units of the root mean square.
    """

    table: tuple[int, ...]
    block: int
    reach: float
    many: TensorList
    chunks: Chunks
    means: TensorList | None


def prepare_table(
    owner: str, table: tuple[int, ...], block: int, reach: float, xs: Sequence[Tensor], peers: Peers
) -> TableBucket | None:
    """The bucket of these tensors, of any shapes, if kernels for many tensors can take it; None: they go one by one.
    ``owner`` is the name of the method, which keys its random streams.
    """
    workspace, device = peers.like.lent.workspace, xs[0].device
    if workspace is None or not can_go_together(xs, peers):
        return None
    sizes, like = tuple([x.numel() for x in xs]), peers.like
    whose = (peers.names, like.rank, like.world, like.seed)
    key = (TableBucket, owner, table, block, reach, device, xs[0].dtype, sizes, whose)
    bucket: TableBucket | None = workspace.kept.get(key)
    if bucket is None:
        W, streams = like.world, [peer.private(owner) for peer in peers]
        chunks = Chunks(sizes, W, table, count_sum_bits(table[-1], W))
        many = TensorList(sizes, chunks.codes[:-1], streams, device)
        means = None if xs[0].dtype is torch.float32 else TensorList(sizes, chunks.codes[:-1], streams, device)
        bucket = TableBucket(table, block, reach, many, chunks, means)
    rooms: Sequence[Tensor] = xs if bucket.means is None else take_rooms(workspace, sizes, device)
    there = bucket.many.point(xs, peers.memories, peers.rests) and bucket.many.lend(peers.rests or rooms)
    if not there or not (bucket.means is None or bucket.means.point(rooms)):
        return None
    workspace.kept[key] = bucket
    return bucket


def exchange_table(bucket: TableBucket, xs: Sequence[Tensor], peers: Peers) -> Exchange[list[Exchanged[None]]]:
    """The results of all tensors, of any shapes, whose means are written over them."""
    many, chunks, block, step = bucket.many, bucket.chunks, bucket.block, peers.like.step
    device, workspace = many.device, peers.like.lent.workspace
    assert workspace is not None
    owners = many.owners(block)
    norms, finite = rotate_norms_many(xs[0], many, block, 0, step)  # [blocks], [T]
    norms.masked_fill_(~finite[owners], math.inf)
    norms = yield AllReduce(norms, "max", donate=True, parts=_parts(many.counts(block)))
    finite = (
        torch.zeros(len(many), dtype=torch.int32, device=device).index_add_(0, owners, (~norms.isfinite()).int()) == 0
    )
    bounds = bounds_of(torch.where(finite[owners], norms, 0.0), many.roots(block), bucket.reach)

    message = workspace.take((chunks.world, chunks.codes[-1]), torch.uint8, device).zero_()
    encode_entries_many(message, many, chunks, bounds, block, step)
    answer = yield AllToAll(message, parts=_lengths(chunks.codes))
    wires.check_shape("codes", answer, message.shape)
    message = workspace.take((chunks.sums[-1],), torch.uint8, device).zero_()
    sum_entries_many(answer.contiguous(), message, many, chunks)
    answer = yield AllGather(message, parts=_lengths(chunks.sums))
    wires.check_shape("sums", answer, torch.Size((chunks.world, chunks.sums[-1])))
    legal = decode_entries_many(answer.contiguous(), bucket.means or many, chunks, bounds, block, step)
    return finish(refuse_illegal(legal, finite, peers.names), many, bucket.means, xs, peers)


def _lengths(begins: Sequence[int]) -> Parts:
    return _parts([stop - start for start, stop in itertools.pairwise(begins)])


def _parts(sizes: Sequence[int]) -> Parts:
    return Parts(tuple(range(len(sizes))), tuple(sizes))
