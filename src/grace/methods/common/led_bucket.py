"""The tensors of a bucket of which one rank says which numbers are sent, on an accelerator, by few launches: blockrandomk.

Nothing here asks the host. Letters: T tensors, of each of which k numbers are sent, K of all of them; W workers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grace import wire as wires
from grace.collectives import AllReduce, Broadcast, Exchange, Parts
from grace.communicators.many import finish, refuse_illegal
from grace.communicators.summed import SumPlan
from grace.contract.method import Exchanged
from grace.contract.peer import Peers
from grace.contract.together import can_go_together
from grace.contract.workspace import Workspace, take_rooms
from grace.flags.capturing import refuse_capture
from grace.kernels import (
    PlaceLists,
    TensorList,
    add_memories_many,
    decode_indices_many,
    encode_indices_many,
    layout,
    sum_listed_many,
    take_listed_many,
    take_topk_many,
)
from grace.kernels.index_codes.codes import choose

LEADS = "which rank leads follows from the step, which is a number of the host's"


@dataclass(frozen=True, slots=True)
class LedBucket:
    """Tensors of a bucket, the lists of what is sent of them, and rooms for means that will be rounded.

    many, plan: where their numbers lie in what is summed. coded, parts: the same tensors, and where their lists lie in what
    the leader sends, with gaps behind them.
    """

    lists: PlaceLists
    many: TensorList
    plan: SumPlan
    coded: TensorList
    parts: Parts
    means: TensorList | None


def prepare_led(kept: Callable[[int], int], xs: Sequence[Tensor], peers: Peers) -> LedBucket | None:
    """The bucket of these tensors, of any shapes, of which ``kept(n)`` of n numbers are sent, if kernels for many tensors can
    take it; None: they go one by one.
    """
    workspace, device = peers.like.lent.workspace, xs[0].device
    if workspace is None or not can_go_together(xs, peers):
        return None
    sizes = tuple(x.numel() for x in xs)
    counts = tuple(kept(n) for n in sizes)
    key = (LedBucket, device, xs[0].dtype, sizes, counts, peers.names)
    bucket: LedBucket | None = workspace.kept.get(key)
    if bucket is None:
        codes = tuple(choose(n, k) for n, k in zip(sizes, counts, strict=True))
        widths = wires.with_gaps([layout(*each).size for each in zip(sizes, counts, codes, strict=True)])
        places = [0, *itertools.accumulate(widths[:-1])]
        plan, parts = SumPlan([4 * k for k in counts], device), Parts(tuple(range(len(xs))), tuple(widths))
        many, coded = (TensorList(sizes, at, (), device) for at in (plan.wires, places))
        means = None if xs[0].dtype is torch.float32 else TensorList(sizes, plan.wires, (), device)
        bucket = LedBucket(PlaceLists(counts, codes, (0,) * len(xs)), many, plan, coded, parts, means)
    there = all(each.point(xs, peers.memories, peers.rests) for each in (bucket.many, bucket.coded))
    if not there or not (bucket.means is None or bucket.means.point(take_rooms(workspace, sizes, device))):
        return None
    workspace.kept[key] = bucket
    return bucket


def exchange_led(
    bucket: LedBucket, leader: int, xs: Sequence[Tensor], peers: Peers, workspace: Workspace
) -> Exchange[list[Exchanged[None]]]:
    """The results of all tensors, of any shapes, whose means are written over them."""
    refuse_capture(LEADS)
    many, plan, lists = bucket.many, bucket.plan, bucket.lists
    codes = workspace.take(sum(bucket.parts.sizes), torch.uint8, many.device).zero_()
    message, leads = workspace.take(plan.size, torch.float32, many.device), peers.like.rank == leader
    index = workspace.take(plan.size, torch.int64, many.device)
    if leads:
        finite = take_topk_many(index, message, bucket.coded, lists.kept)
        encode_indices_many(codes, bucket.coded, lists, index)
    else:
        finite = add_memories_many(message, many)
    answer = yield Broadcast(codes, leader, parts=bucket.parts)
    wires.check_shape("indices", answer, codes.shape)
    legal = torch.ones_like(finite)
    if not leads:
        places, legal = decode_indices_many(answer.contiguous()[None], bucket.coded, lists)
        index = places[0]
        take_listed_many(message, index, many, lists)
    message.masked_fill_(~finite[plan.owners], math.nan)
    answer = yield AllReduce(message, "mean", donate=True, parts=plan.parts)
    wires.check_shape("sum", answer, message.shape)
    finite = sum_listed_many(answer.contiguous(), index, bucket.means or many, lists)
    return finish(refuse_illegal(legal, finite, peers.names), many, bucket.means, xs, peers)
