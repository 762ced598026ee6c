"""Tensors of a bucket whose wires are as long as the data want: by as many launches as one of them takes, and one question.

What is sent is chosen for all tensors; the workers tell each other how long their wires are, which the host has to be told
before it can ask the network for them; then all wires are written, gathered and added up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from grace import wire as wires
from grace.collectives import AllGather, Exchange, Parts
from grace.communicators.many import Prepared, agree, gather, give_back
from grace.contract.method import Exchanged
from grace.contract.peer import Peer, Peers
from grace.contract.workspace import Workspace
from grace.errors import PayloadError
from grace.kernels.index_codes.variable import GapPairs, GapPlaces, sum_gap_pairs_many, write_gap_pairs_many
from grace.kernels.minmax_sketch import MinMaxCode, MinMaxPlaces, sum_minmax_many, write_minmax_many
from grace.kernels.sampling import DrawnCode, DrawnPlaces, sum_drawn_many, write_drawn_many
from grace.kernels.tagged_fixed_point import TaggedCode, TaggedPlaces, sum_tagged_many, write_tagged_many
from grace.kernels.ternary import QuarticCode, QuarticPlaces, sum_quartic_many, write_quartic_many
from grace.kernels.variable_sparse import Chosen, CountedCode, CountedPlaces, sum_counted_many, write_chosen_many
from grace.kernels.variable_sparse.parts import WirePlaces
from grace.kernels.wire_codes import WireCode

# For wires of each kind: where they lie, what writes them, and what adds them up.
_FAMILIES: dict[type, tuple[Any, Any, Any]] = {
    CountedCode: (CountedPlaces, write_chosen_many, sum_counted_many),
    DrawnCode: (DrawnPlaces, write_drawn_many, sum_drawn_many),
    GapPairs: (GapPlaces, write_gap_pairs_many, sum_gap_pairs_many),
    MinMaxCode: (MinMaxPlaces, write_minmax_many, sum_minmax_many),
    QuarticCode: (QuarticPlaces, write_quartic_many, sum_quartic_many),
    TaggedCode: (TaggedPlaces, write_tagged_many, sum_tagged_many),
}


Filling: TypeAlias = Callable[[Tensor, WirePlaces, Workspace, Peer], Exchange[Tensor]]


@dataclass(frozen=True)
class NoPlan:
    """Exchange of wires whose widths are not known yet."""

    wires: ClassVar[Sequence[int]] = ()

    @staticmethod
    def of(widths: Sequence[int], device: torch.device) -> NoPlan:
        """The only one."""
        return NoPlan()


def gather_counted(message: Tensor, places: WirePlaces, workspace: Workspace, peer: Peer) -> Exchange[Tensor]:
    """The messages uint8 ``[s]`` of all ranks: ``[W, s]``, contiguous."""
    parts = Parts(tuple(range(len(places.sealed))), places.sealed)
    return (yield from gather(message, parts, workspace, peer))


def exchange_counted(
    bucket: Prepared[NoPlan], code: WireCode, xs: Sequence[Tensor], peers: Peers, fill: Filling = gather_counted
) -> Exchange[list[Exchanged[Any]]]:
    """The results of all tensors, of any shapes, whose means are written over them. ``fill(message, places, workspace, peer)``
    asks for the messages of all ranks.
    """
    chosen = bucket.compressor.choose_many_(bucket.many, bucket.stream, code)
    results, _ = yield from exchange_chosen(bucket, code, chosen, xs, peers, fill=fill)
    return results


def exchange_chosen(
    bucket: Prepared[NoPlan],
    code: WireCode,
    chosen: Chosen,
    xs: Sequence[Tensor],
    peers: Peers,
    asked: Sequence[Tensor] = (),
    *,
    fill: Filling = gather_counted,
) -> Exchange[tuple[list[Exchanged[Any]], list[list[int]]]]:
    """As :func:`exchange_counted`, of what was chosen; and what the host has read with the widths, ``asked [T]`` integers."""
    many, peer, each = bucket.many, peers.like, tuple(range(len(xs)))
    answer = yield AllGather(chosen.widths, parts=Parts(each, (1,) * len(xs)))  # [W, T]
    wires.check_shape("widths", answer, (peer.world, len(xs)))
    beside = [row[None].to(answer.dtype) for row in asked]
    told = torch.cat((answer, chosen.widths[None], *beside)).tolist()  # one question
    widths, own, answers = told[: peer.world], told[peer.world], told[peer.world + 1 :]
    _check_own(widths[peer.rank], own, peers)
    lay, write, add_up = _FAMILIES[type(code)]
    places = lay(widths, peer.rank, many.sizes, code)
    places.step = peer.step
    message = bucket.workspace.take(places.size, torch.uint8, many.device).zero_()
    write(message, many, code, chosen, places)
    words = places.words(many.device)
    wires.write_bucket_flags(message, words, chosen.finite, peer.step)
    room = yield from fill(message, places, bucket.workspace, peer)
    legal = add_up(room, bucket.means or many, code, places, 1 / peer.world)
    return give_back(agree(room, words, legal, many, peers, bucket.means), xs, peers), answers


def _check_own(heard: Sequence[int], own: Sequence[int], peers: Peers) -> None:
    """Checks the widths that this rank has sent.

    Raises:
        PayloadError: one came back as another.
    """
    for width, right, name in zip(heard, own, peers.names, strict=True):
        if width != right:
            raise PayloadError(
                f"{name}: field 'width' of rank {peers.like.rank}, this one, came back as {width}, not {right}"
            )
