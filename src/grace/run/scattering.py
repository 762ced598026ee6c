"""A step of a reduce-scatter of many tensors, in as few collectives as possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grace.collectives import AllToAll, Exchange, ReduceScatter, Traffic, cost
from grace.contract.method import Exchanged, Method, check_rows, plain_rows
from grace.contract.peer import Peer, Peers
from grace.contract.together import Layouts, together
from grace.contract.workspace import Workspace
from grace.flags.finite import on_host
from grace.kernels import add_scaled_
from grace.run.groups import NONE


class Scattering(NamedTuple):
    """A tensor as rows ``[W, c]``, see :meth:`grace.Method.scatter_all`, with its method, its state, and who this worker
    is in its exchange.

    checked: whether ranks are to agree on whether it is finite. What is not compressed needs no agreement otherwise, as over
    an all-reduce: see :class:`grace.contract.method.Exchanged`.
    """

    method: Method[Any]
    rows: Tensor
    state: Any
    peer: Peer
    checked: bool

    @property
    def as_it_is(self) -> bool:
        """True if its numbers travel beside those of others, without a header of its own."""
        return not self.checked and self.method == NONE


def scatter_all(
    tensors: Sequence[Scattering], layouts: Layouts, workspace: Workspace, *, plans: bool = True
) -> Exchange[list[Exchanged[Any]]]:
    """The results of :meth:`grace.Method.scatter` for each of these, in their order.

    Those that are not compressed are one piece of the all-to-all that the others share: a transformer's block has a dozen of
    them, with few numbers. Those of one method are a batch, with ``plans``: see :class:`grace.run.batches.Batches`.
    """
    places = _batches(tensors, plans)
    runs: list[Any] = [_scatter([tensors[place] for place in batch]) for batch in places]
    if plain := [place for place, tensor in enumerate(tensors) if tensor.as_it_is]:
        runs.append(_sum([tensors[place].rows for place in plain], tensors[plain[0]].peer))
        places.append(plain)
    outs = yield from together(runs, layouts, workspace, places)
    results: list[Any] = [None] * len(tensors)
    for of, outcomes in zip(places, outs, strict=True):
        for place, out in zip(of, outcomes, strict=True):
            results[place] = out
    return [
        Exchanged(out, None, tensor.state) if isinstance(out, Tensor) else out
        for tensor, out in zip(tensors, results, strict=True)
    ]


def _batches(tensors: Sequence[Scattering], plans: bool) -> list[list[int]]:
    """Numbers of the tensors that are exchanged as one, those of one method: it asks for the same collectives for each."""
    batches: dict[Any, list[int]] = {}
    for place, tensor in enumerate(tensors):
        if not tensor.as_it_is:
            joins = plans and tensor.method.has_scatter and tensor.rows.numel() > 0
            kind = (id(tensor.method), tensor.rows.device) if joins else place
            batches.setdefault(kind, []).append(place)
    return list(batches.values())


def sum_rows(rows: Tensor) -> Exchange[Tensor]:
    """Sums rows ``[W, c]`` over ranks to this rank's own ``[c]``, as the network adds up: what torch does by itself."""
    return (yield ReduceScatter(rows, "sum"))


def traffic_of(tensor: Scattering) -> Traffic | None:
    """Traffic of :func:`scatter_all` for one tensor, which may be on the meta device; None if that varies."""
    if not tensor.as_it_is:
        return tensor.method.scatter_traffic(tensor.rows, tensor.peer)
    size = 4 * tensor.rows.shape[1]
    buffer = torch.empty(tensor.peer.world, size, dtype=torch.uint8, device="meta")
    return cost(AllToAll(buffer), tensor.peer.rank, tensor.peer.world) if size else Traffic()


def _scatter(batch: Sequence[Scattering]) -> Exchange[list[Exchanged[Any]]]:
    method, rows, state, peer, _ = batch[0]
    if len(batch) == 1 and on_host(rows.device):
        return [(yield from method.scatter(plain_rows(rows), state, peer))]
    peers = Peers(peer, [tensor.peer.name for tensor in batch])
    return (yield from method.scatter_all([t.rows for t in batch], [t.state for t in batch], peers))


def _sum(tensors: Sequence[Tensor], peer: Peer) -> Exchange[list[Tensor]]:
    """Averages each of these ``[W, c]`` to the mean ``[c]`` of this rank's row, added up in the order of the ranks."""
    for rows in tensors:
        check_rows(rows, peer, narrow=True)
    widths = [rows.shape[1] for rows in tensors]
    given = plain_rows(torch.cat(list(tensors), dim=1))
    mean = given.new_zeros(given.shape[1])
    if mean.numel():
        theirs = yield AllToAll(given.view(torch.uint8))
        for row in theirs.contiguous().view(torch.float32):
            add_scaled_(mean, row, 1 / peer.world)
    return list(torch.split(mean, widths))
