"""The tensors of a bucket whose mean's largest numbers a summed sketch finds, on an accelerator, by few launches: sketchedsgd.

Nothing here asks the host. Letters: T tensors; a sketch has R rows of c cells; of p candidates k numbers are kept; P and K are
those of all tensors. Tensors that are too small for a sketch are sent whole, and all of their numbers are candidates. Here
those that are sketched come first, and then the others; but messages have the order of the bucket.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from grace import wire as wires
from grace.collectives import AllReduce, Exchange, Parts
from grace.compute.host import host_int64, to_device
from grace.contract.method import Exchanged
from grace.contract.peer import Peer, Peers
from grace.contract.together import can_go_together
from grace.contract.workspace import Workspace, take_rooms
from grace.kernels import (
    PRIME,
    PlaceLists,
    TensorList,
    add_memories_many,
    count_sketches_many,
    poison_many,
    put_listed_many,
    read_sketches_many,
    take_listed_many,
    take_topk_many,
)
from grace.kernels.multi_tensor import clear_many, narrow_many


class Sketching(NamedTuple):
    """The sizes of a sketched tensor: c columns of a sketch, or None; then p candidates, of which k are kept."""

    cols: int | None
    candidates: int
    kept: int


class SketchPlan:
    """Plan of a bucket of sketches: what stays the same at every step.

    Args:
        sizes: numbers of each tensor. rows: R. ways: what is sent of each. owner: the name that keys the sketches' streams.
        peers: who exchanges them. device: of the tensors. narrow: whether means will be rounded.

    order: the tensors in the order that they have here; the first ``count`` are sketched. first, second: what is sent.
    many: all tensors. counted, taken: those that are sketched, where their sketches and their candidates lie in what is sent;
    whole: the others. exact: the means of candidates. put: what the means are put into.
    """

    def __init__(
        self, sizes: Sequence[int], rows: int, ways: Sequence[Sketching], owner: str, peers: Sequence[Peer],
        device: torch.device, *, narrow: bool,
    ):  # fmt: skip
        T = range(len(sizes))
        self.order = sorted(T, key=lambda t: ways[t].cols is None)
        self.count = sum(way.cols is not None for way in ways)
        self.rows, self.cols = rows, tuple(way.cols for way in ways if way.cols is not None)
        large, small = self.order[: self.count], self.order[self.count :]
        sent = [way.candidates if way.cols is None else rows * way.cols for way in ways]
        begins = [0, *itertools.accumulate(sent)]
        candidates = [ways[t].candidates for t in self.order]
        self.first, self.second = Parts(tuple(T), tuple(sent)), Parts(tuple(large), tuple(candidates[: self.count]))

        heads = list(itertools.accumulate(candidates, initial=0))
        self.many, self.put, self.exact = (
            TensorList(each, (), (), device)
            for each in ([sizes[t] for t in self.order], [sizes[t] for t in self.order], candidates)
        )
        streams = [peers[t].shared(owner) for t in large]
        self.counted = TensorList([sizes[t] for t in large], [4 * begins[t] for t in large], streams, device)
        self.taken = TensorList([sizes[t] for t in large], [4 * head for head in heads[: self.count]], (), device)
        self.whole = TensorList([sizes[t] for t in small], [4 * begins[t] for t in small], (), device)
        self.narrow = narrow

        self.kept = PlaceLists(tuple(ways[t].kept for t in self.order), (), ())
        self.selected, self.all = (
            PlaceLists(tuple(each), (), ()) for each in (candidates[: self.count], candidates[self.count :])
        )
        owners = torch.full((begins[-1],), self.count, dtype=torch.int64, device="cpu")
        for t, i in enumerate(large):
            owners[begins[i] : begins[i + 1]] = t
        spans = [torch.arange(begins[t], begins[t + 1], dtype=torch.int64, device="cpu") for t in small]
        self.owners = to_device(
            owners, device
        )  # of the first message: the sketch that a number belongs to, or ``count``
        nothing = torch.zeros(0, dtype=torch.int64, device="cpu")
        self.sent_whole = to_device(torch.cat([nothing, *spans]), device)  # where it has no sketch
        every = [torch.arange(sizes[t], dtype=torch.int64, device="cpu") for t in small]
        self.everywhere = to_device(torch.cat([nothing, *every]), device)  # the candidates of the others
        begin = torch.repeat_interleave(host_int64(heads[:-1]), host_int64(self.kept.kept))
        self.heads = to_device(begin, device)
        self.none = torch.zeros(len(sizes), dtype=torch.bool, device=device)
        self.yes = torch.ones(1, dtype=torch.bool, device=device)

    def point(self, xs: Sequence[Tensor], peers: Peers, workspace: Workspace) -> Tensor | None:
        """From now on these are the tensors, of any shapes: room for the means of candidates, float32 ``[P]``. None: their
        addresses cannot be told, see :meth:`TensorList.point`.
        """
        device, L = self.many.device, self.count
        rows = [xs[t] for t in self.order]
        lent = [None if each is None else [each[t] for t in self.order] for each in (peers.memories, peers.rests)]
        x = take_rooms(workspace, self.many.sizes, device) if self.narrow else rows
        exact = workspace.take(sum(self.exact.sizes), torch.float32, device)
        there = self.many.point(rows, *lent) and self.put.point(x, None, x)
        there = there and self.exact.point([part[None] for part in exact.split_with_sizes(self.exact.sizes)])
        if L > 0:
            estimates, given = take_rooms(workspace, self.counted.sizes, device), [each and each[:L] for each in lent]
            there = there and self.counted.point(rows[:L], *given) and self.taken.point(rows[:L], *given)
            there = there and self.counted.lend(estimates)
        if len(rows) > L:
            there = there and self.whole.point(rows[L:], *(each and each[L:] for each in lent))
        return exact if there else None


class SketchBucket(NamedTuple):
    """Tensors of a bucket that go together, and room for the means of their candidates, float32 ``[P]``."""

    plan: SketchPlan
    exact: Tensor
    workspace: Workspace


def prepare_sketches(
    owner: str, rows: int, ways: Sequence[Sketching], xs: Sequence[Tensor], peers: Peers
) -> SketchBucket | None:
    """The bucket of these tensors, of any shapes, of which these are sent, if kernels for many tensors can take it; None: they
    go one by one. ``owner``: the name that keys the sketches' streams.
    """
    workspace, device = peers.like.lent.workspace, xs[0].device
    if workspace is None or not can_go_together(xs, peers) or max(x.numel() for x in xs) >= PRIME:
        return None
    sizes = tuple([x.numel() for x in xs])
    key = (SketchPlan, owner, rows, tuple(ways), device, xs[0].dtype, sizes, peers.names, peers.like.seed)
    plan: SketchPlan | None = workspace.kept.get(key)
    plan = plan or SketchPlan(sizes, rows, ways, owner, peers, device, narrow=xs[0].dtype is not torch.float32)
    exact = plan.point(xs, peers, workspace)
    if exact is None:
        return None
    workspace.kept[key] = plan
    return SketchBucket(plan, exact, workspace)


def exchange_sketches(
    bucket: SketchBucket, xs: Sequence[Tensor], peers: Sequence[Peer]
) -> Exchange[list[Exchanged[None]]]:
    """The results of all tensors, of any shapes, whose means are written over them."""
    plan, exact, workspace = bucket
    many, device, L, step = plan.many, plan.many.device, plan.count, peers[0].step
    P, size = len(exact), sum(plan.second.sizes)
    finite = add_memories_many(exact, many)  # [T]
    message = workspace.take(len(plan.owners), torch.float32, device)
    if L:
        count_sketches_many(message, plan.counted, plan.rows, plan.cols, step)
    if size < P:
        take_listed_many(message, plan.everywhere, plan.whole, plan.all, clear=False)
    message.masked_fill_(~torch.cat((finite[:L], plan.yes))[plan.owners], math.nan)
    answer = yield AllReduce(message, "mean", donate=True, parts=plan.first)
    wires.check_shape("first round", answer, message.shape)
    torch.index_select(answer, 0, plan.sent_whole, out=exact[size:])

    places = workspace.take(P, torch.int64, device)  # of the candidates
    places[size:] = plan.everywhere
    legible = plan.yes[:0]
    if L:
        estimates, sent = plan.counted.work, workspace.take(size, torch.float32, device)
        assert estimates is not None
        legible = read_sketches_many(answer.contiguous(), estimates, plan.rows, plan.cols, step)
        take_topk_many(places[:size], sent, estimates, plan.selected.kept)
        take_listed_many(sent, places[:size], plan.taken, plan.selected, clear=False)
        answer = yield AllReduce(sent, "mean", donate=True, parts=plan.second)
        wires.check_shape("second round", answer, sent.shape)
        exact[:size] = answer

    index, values = torch.zeros_like(plan.heads), workspace.take(len(plan.heads), torch.float32, device)
    finite = take_topk_many(index, values, plan.exact, plan.kept.kept)
    finite[:L] &= legible
    index = places[index.add_(plan.heads)]
    if many.rests is not None:
        put_listed_many(index, torch.zeros_like(values), many, plan.kept)
    clear_many(plan.none, plan.put)
    put_listed_many(index, values, plan.put, plan.kept)
    if plan.narrow:
        finite = narrow_many(finite, plan.put, many)
    poison_many(finite, many)
    flags = dict(zip(plan.order, finite.unbind(0), strict=True))
    return [Exchanged(x, peer.lent.rest, None, flags[t]) for t, (x, peer) in enumerate(zip(xs, peers, strict=True))]
