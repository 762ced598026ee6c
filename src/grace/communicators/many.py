"""Tensors of a bucket on an accelerator, by as many launches as one of them takes: the same bytes, means and memories.

Nothing here asks the host. Where tensors are, and where their wires go, is in tables on the device, made when they move.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from grace import wire as wires
from grace.collectives import AllGather, Exchange, Parts
from grace.communicators.bucket import BucketPlan
from grace.compute import backends
from grace.compute.launching import READ
from grace.contract.compressor import Compressor
from grace.contract.method import Exchanged
from grace.contract.peer import Peer
from grace.contract.workspace import Workspace, take_rooms
from grace.errors import PayloadError
from grace.flags.finite import on_host
from grace.flags.refusals import refuse_unless
from grace.kernels.many import Many, poison_many
from grace.kernels.staging import narrow_many
from grace.random import Stream


class WirePlan(Protocol):
    """Where the wires of several tensors lie: for each the byte of the message where it begins."""

    @property
    def wires(self) -> Sequence[int]: ...


P = TypeVar("P", bound=WirePlan)


@dataclass(frozen=True, slots=True)
class Prepared(Generic[P]):
    """A bucket that goes by few launches: its tensors, where their wires lie, and rooms for means that will be rounded."""

    compressor: Compressor
    stream: Stream
    many: Many
    plan: P
    workspace: Workspace
    means: Many | None


def prepare(
    owner: object,
    compressor: Compressor,
    streams: Sequence[Stream],
    xs: Sequence[Tensor],
    peers: Sequence[Peer],
    workspace: Workspace,
    plan_of: Callable[[Sequence[int], torch.device], P],
) -> Prepared[P] | None:
    """The bucket of these tensors, of any shapes, if kernels for many tensors can take it; None: they go one by one.

    ``owner`` is the method that asks, for which it is kept; ``plan_of`` makes the plan for wires of so many bytes, or if
    wires are counted, for none: their widths are not known.
    """
    device = xs[0].device
    if not (compressor.handles_many or compressor.counted) or not can_go_together(xs, peers):
        return None
    sizes = tuple(x.numel() for x in xs)
    ids = tuple((stream.tensor, stream.rank, stream.seed) for stream in streams)
    key = (Prepared, owner, device, xs[0].dtype, sizes, ids)
    prepared: Prepared[P] | None = workspace.kept.get(key)
    if prepared is None:
        widths = [] if compressor.counted else [compressor.facts(n).payload for n in sizes]
        if None in widths:
            return None
        plan = plan_of([width or 0 for width in widths], device)
        means = None if xs[0].dtype is torch.float32 else Many(sizes, plan.wires, streams, device)
        prepared = Prepared(compressor, streams[0], Many(sizes, plan.wires, streams, device), plan, workspace, means)
    rows, (memories, rests) = [x.view(1, -1) for x in xs], lent_rows(peers)
    rooms = rows if prepared.means is None else take_rooms(workspace, sizes, device)
    if not prepared.many.point(rows, memories, rests) or not (prepared.means is None or prepared.means.point(rooms)):
        return None
    if compressor.takes_work and not prepared.many.lend(rests or rooms):
        return None
    workspace.kept[key] = prepared
    return replace(prepared, stream=streams[0])


def can_go_together(xs: Sequence[Tensor], peers: Sequence[Peer]) -> bool:
    """Whether kernels for many tensors can take these, of any shapes, where they are: all of one dtype, with memories or all
    without.
    """
    device = xs[0].device
    if on_host(device) or not backends.runs_triton(device) or not all(map(_is_plain, xs, peers)):
        return False
    return len({x.dtype for x in xs}) == len({peer.lent.keep_rest for peer in peers}) == 1


def lent_rows(peers: Sequence[Peer]) -> tuple[list[Tensor] | None, list[Tensor] | None]:
    """The memories and rests that are lent, ``[1, n]`` each, if any are."""
    if peers[0].lent.memory is None:
        return None, None
    return _rows([peer.lent.memory for peer in peers]), _rows([peer.lent.rest for peer in peers])


def refuse_illegal(legal: Tensor, finite: Tensor, names: Sequence[str]) -> Tensor:
    """``[T]`` bool: which tensors all ranks have seen finite, and have legal wires. The others are refused."""
    refuse_unless((legal | ~finite).all(), lambda: _illegal(names, (legal | ~finite).tolist()))
    return finite & legal


def plan_bytes(widths: Sequence[int], device: torch.device) -> BucketPlan:
    """The plan of sealed wires of so many bytes."""
    return BucketPlan([(width, torch.uint8) for width in widths], device)


def exchange_many(
    bucket: Prepared[BucketPlan],
    xs: Sequence[Tensor],
    peers: Sequence[Peer],
    fill: Callable[[Tensor, Tensor, BucketPlan, int], Exchange[None]],
) -> Exchange[list[Exchanged[Any]]]:
    """The results of all tensors, of any shapes, whose means are written over them. ``fill(message, room, plan, rank)`` fills
    the room ``[W, s]`` with the messages ``[s]`` of all ranks.
    """
    many, plan, peer = bucket.many, bucket.plan, peers[0]
    message = plan.take(bucket.workspace, many.device)
    finite = bucket.compressor.encode_many_(message, many, bucket.stream)
    wires.write_bucket_flags(message, plan.words, finite, peer.step)
    room = bucket.workspace.take((peer.world, plan.size), torch.uint8, many.device)
    yield from fill(message, room, plan, peer.rank)
    scale = 1.0 if bucket.compressor.aggregation == "majority" else 1 / peer.world
    legal = bucket.compressor.aggregate_many_(room, bucket.means or many, scale, bucket.stream)
    return give_back(bucket, wires.read_bucket_flags(room, plan.words, peer.step), legal, xs, peers)


def gather(message: Tensor, parts: Parts, workspace: Workspace, peer: Peer) -> Exchange[Tensor]:
    """The messages uint8 ``[s]`` of all ranks: ``[W, s]``, contiguous."""
    room = workspace.take((peer.world, len(message)), torch.uint8, message.device)
    answer = yield AllGather(message, into=room, parts=parts)
    wires.check_shape("wires", answer, room.shape)
    if answer.data_ptr() != room.data_ptr():
        room.copy_(answer)
    return room


def give_back(
    bucket: Prepared[Any], finite: Tensor, legal: Tensor, xs: Sequence[Tensor], peers: Sequence[Peer]
) -> list[Exchanged[Any]]:
    """The results of tensors, of any shapes, whose means are there: those that all ranks have seen ``finite [T]``, and whose
    wires were ``legal [T]``; NaN in the place of the others.
    """
    fine = refuse_illegal(legal, finite, [one.name for one in peers])
    if bucket.means is not None:
        fine = narrow_many(fine, bucket.means, bucket.many)
    poison_many(fine, bucket.many)
    return [Exchanged(x, one.lent.rest, None, flag) for x, one, flag in zip(xs, peers, fine.unbind(0), strict=True)]


def _illegal(names: Sequence[str], fine: Sequence[bool]) -> PayloadError:
    """The error for tensors, some of whose wires no sender writes."""
    wrong = ", ".join(repr(name) for name, one in zip(names, fine, strict=True) if not one)
    return PayloadError(f"the wire of {wrong} has a scale or code that no sender writes")


def _rows(tensors: Sequence[Tensor | None]) -> list[Tensor]:
    return [x.view(1, -1) for x in tensors if x is not None]


def _is_plain(x: Tensor, peer: Peer) -> bool:
    """Whether a tensor can be encoded and decoded where it is."""
    lent, plain = peer.lent, x.dtype in READ and x.is_contiguous() and x.numel() > 0
    return plain and (lent.memory is not None) == lent.keep_rest == (lent.rest is not None)
