"""Tensors of a bucket on an accelerator, by as many launches as one of them takes: the same bytes, means and memories.

Nothing here asks the host. Where tensors are, and where their wires go, is in tables on the device, made when they move.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from grace import wire as wires
from grace.collectives import AllGather, Exchange, Parts
from grace.communicators.bucket import BucketPlan
from grace.contract.compressor import Compressor, wire_dtype
from grace.contract.method import Exchanged
from grace.contract.peer import Peer, Peers
from grace.contract.together import can_go_together
from grace.contract.workspace import Workspace, take_rooms
from grace.errors import PayloadError
from grace.flags.finite import flags, on_host
from grace.flags.refusals import refuse_unless
from grace.kernels.multi_tensor import finite_many, narrow_many
from grace.kernels.tensor_list import TensorList, agree_many, poison_many
from grace.random import Stream


class WirePlan(Protocol):
    """Positions of the wires of several tensors: for each the byte of the message where it begins."""

    @property
    def wires(self) -> Sequence[int]: ...


P = TypeVar("P", bound=WirePlan)


@dataclass(frozen=True, slots=True)
class Prepared(Generic[P]):
    """A bucket that goes by few launches: its tensors, where their wires lie, and rooms for means that will be rounded."""

    compressor: Compressor
    stream: Stream
    many: TensorList
    plan: P
    workspace: Workspace
    means: TensorList | None


def takes_bucket(compressor: Compressor, device: torch.device) -> bool:
    """True if the compressor takes the tensors of a bucket on this device as one: by kernels for many, or on the host, where
    it is asked for each, unless the sizes of its wires depend on the data.
    """
    return compressor.handles_many or (on_host(device) and not compressor.varies)


def prepare(
    owner: object,
    compressor: Compressor,
    stream_of: Callable[[Peer], Stream],
    xs: Sequence[Tensor],
    peers: Peers,
    workspace: Workspace,
    plan_of: Callable[[Sequence[int], torch.device], P],
    *,
    anywhere: bool = False,
) -> Prepared[P] | None:
    """The bucket of these tensors, of any shapes, if kernels for many tensors can take it, with ``anywhere`` also on the host;
    None: they go one by one.

    ``owner`` is the method that asks, for which it is kept, with ``stream_of`` each tensor's random numbers; ``plan_of`` makes
    the plan for wires of so many bytes, or if wires are counted, for none: their widths are not known.
    """
    device, like = xs[0].device, peers.like
    few = takes_bucket(compressor, device) or compressor.counted
    if not few or not can_go_together(xs, peers, anywhere=anywhere):
        return None
    sizes = tuple([x.numel() for x in xs])
    key = (Prepared, owner, device, xs[0].dtype, sizes, peers.names, like.rank, like.seed)
    kept: tuple[TensorList, P, TensorList | None] | None = workspace.kept.get(key)
    if kept is None:
        widths = [] if compressor.counted else [compressor.facts(n).payload for n in sizes]
        if None in widths:
            return None
        plan, streams = plan_of([width or 0 for width in widths], device), [stream_of(peer) for peer in peers]
        means = None if xs[0].dtype is torch.float32 else TensorList(sizes, plan.wires, streams, device)
        kept = TensorList(sizes, plan.wires, streams, device), plan, means
    many, plan, means = kept
    rooms: Sequence[Tensor] = xs
    if means is not None:
        rooms = take_rooms(workspace, sizes, device)
    if not many.point(xs, peers.memories, peers.rests) or not (means is None or means.point(rooms)):
        return None
    if compressor.takes_work and compressor.handles_many and not many.lend(peers.rests or rooms):
        return None
    workspace.kept[key] = kept
    return Prepared(compressor, stream_of(peers[0]), many, plan, workspace, means)


def agree(
    rows: Tensor,
    words: Tensor,
    legal: Tensor,
    many: TensorList,
    peers: Peers,
    means: TensorList | None = None,
    *,
    clear: bool = False,
    overflows: bool = False,
    explain: Callable[[int], None] | None = None,
) -> Tensor:
    """``[T]`` bool: which tensors all ranks have seen finite, as the headers at ``words [T]`` of the messages ``rows [W, s]``
    say, and have ``legal [T]`` wires. The others become NaN, or with ``clear`` 0, and are refused if they are illegal. With
    ``means``, float32, the tensors become those, rounded, and have to be finite then; so they have to be if legal wires may
    say what ``overflows``. ``explain(t)`` may raise the error for the illegal wires of tensor t, where the host can read them.
    """
    kept = None
    if means is not None:
        kept = narrow_many(many.all_set, means, many)
    elif overflows:
        kept = finite_many(many.all_set, many)
    step = peers.like.step
    told, headers = agree_many(rows, words, wires.header_of(True, step), legal, many, kept=kept, clear=clear)
    if many.all_are_told(told):
        return many.all_set
    fine, known, right = told.unbind(0)
    refuse_unless(known, lambda: wires.explain_headers(headers.t().tolist(), step))
    refuse_unless(right, lambda: _illegal(peers.names, right.tolist(), explain))
    return fine


def refuse_illegal(legal: Tensor, finite: Tensor, names: Sequence[str]) -> Tensor:
    """``[T]`` bool: which tensors all ranks have seen finite, and have legal wires. The others are refused."""
    fine = legal >= finite  # or not finite: then the wire means nothing
    refuse_unless(fine, lambda: _illegal(names, fine.tolist()))
    return finite & legal


def explaining(
    compressor: Compressor,
    plan: BucketPlan,
    rows: Tensor,
    many: TensorList,
    scale: float,
    peers: Peers,
    *,
    apart: bool = False,
) -> Callable[[int], None]:
    """Makes the decoder of the wires of a tensor in ``rows [W, s]``, with ``apart`` of each of them alone, where the host may
    read them: for the error that says what is wrong with them.
    """

    def explain(t: int) -> None:
        if on_host(many.device):
            out, peer = torch.empty_like(many.xs[t][:1]), peers[t]
            dtype = wire_dtype(compressor, out.shape[1], peer.private(compressor.id), out.device)
            received = [wires.view_as(wire, dtype) for wire in plan.wires_of(rows, t)]
            for given in [[wire] for wire in received] if apart else [received]:
                compressor.aggregate_(given, out, scale, peer.shared(compressor.id))

    return explain


def exchange_many(
    bucket: Prepared[BucketPlan],
    xs: Sequence[Tensor],
    peers: Peers,
    fill: Callable[[Tensor, Tensor, BucketPlan, int], Exchange[None]],
) -> Exchange[list[Exchanged[Any]]]:
    """The results of all tensors, of any shapes, whose means are written over them. ``fill(message, room, plan, rank)`` fills
    the room ``[W, s]`` with the messages ``[s]`` of all ranks.
    """
    many, plan, like, compressor = bucket.many, bucket.plan, peers.like, bucket.compressor
    message = plan.take(bucket.workspace, many.device)
    finite = compressor.encode_many_(message, many, bucket.stream)
    wires.write_bucket_flags(message, plan.words, finite, like.step)
    room = bucket.workspace.take((like.world, plan.size), torch.uint8, many.device)
    yield from fill(message, room, plan, like.rank)
    scale = 1.0 if compressor.aggregation == "majority" else 1 / like.world
    legal = compressor.aggregate_many_(room, bucket.means or many, scale, bucket.stream)
    fine = agree(
        room, plan.words, legal, many, peers, bucket.means, overflows=compressor.overflows,
        explain=explaining(compressor, plan, room, many, scale, peers),
    )  # fmt: skip
    return give_back(fine, xs, peers)


def gather(message: Tensor, parts: Parts, workspace: Workspace, peer: Peer) -> Exchange[Tensor]:
    """The messages uint8 ``[s]`` of all ranks: ``[W, s]``, contiguous."""
    room = workspace.take((peer.world, len(message)), torch.uint8, message.device)
    answer = yield AllGather(message, into=room, parts=parts)
    wires.check_shape("wires", answer, room.shape)
    if answer.data_ptr() != room.data_ptr():
        room.copy_(answer)
    return room


def finish(
    fine: Tensor,
    many: TensorList,
    means: TensorList | None,
    xs: Sequence[Tensor],
    peers: Peers,
    states: Sequence[Any] | None = None,
) -> list[Exchanged[Any]]:
    """The results of tensors, of any shapes, whose means are there, or in float32 in ``means``: those that are ``fine [T]``;
    NaN in the place of the others. ``states``: what follows their states, if they have any.
    """
    if means is not None:
        fine = narrow_many(fine, means, many)
    poison_many(fine, many)
    return give_back(fine, xs, peers, states)


def give_back(
    fine: Tensor, xs: Sequence[Tensor], peers: Peers, states: Sequence[Any] | None = None
) -> list[Exchanged[Any]]:
    """The results of tensors, of any shapes, whose means are there, or NaN for those that are not ``fine [T]``."""
    nothing = [None] * len(xs)
    each = zip(xs, peers.rests or nothing, states or nothing, flags(fine), strict=True)
    return [Exchanged(x, rest, state, flag) for x, rest, state, flag in each]


def _illegal(names: Sequence[str], fine: Sequence[bool], explain: Callable[[int], None] | None = None) -> PayloadError:
    """The error for tensors, some of whose wires no sender writes."""
    wrong = [t for t, legal in enumerate(fine) if not legal]
    try:
        if explain is not None:
            for t in wrong:
                explain(t)
    except PayloadError as error:
        return error
    named = ", ".join(repr(names[t]) for t in wrong) or "a replayed step"
    return PayloadError(f"the wire of {named} has a scale or code that no sender writes")
