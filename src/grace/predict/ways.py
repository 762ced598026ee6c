"""Ways to exchange, for replays: the mean of a tensor goes to all workers, or each row's mean to the worker that owns it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from grace.collectives import Exchange, ReduceScatter, Traffic, cost
from grace.communicators.base import Communicator
from grace.contract.method import Method
from grace.contract.peer import Peer
from grace.contract.wrapping import layers, own_fields
from grace.registry import spell
from grace.run.distortion import measure_distortion
from grace.run.groups import NONE
from grace.run.scattering import sum_rows
from grace.run.worker import Worker


class Way(Protocol):
    """A way to exchange a tensor."""

    @property
    def joins(self) -> bool:
        """True if what is not compressed travels in the collective of what is, if both are in one bucket."""

    def exchange(self, worker: Worker, method: Method[Any], xs: Mapping[str, Tensor]) -> Exchange[None]:
        """Exchanges matrices of one worker, donated, as a bucket, under the worker's policy, which has this method for all."""

    def traffic(self, method: Method[Any], shape: Sequence[int], peer: Peer) -> Traffic | None:
        """Traffic of a method for a tensor of this shape; None: that varies."""

    def wire_bits(self, method: Method[Any], shape: Sequence[int], world: int) -> float | None:
        """The payload of one of ``world`` workers for a tensor of this shape, in bits; None: that varies."""

    def lost(self, method: Method[Any], x: Tensor, peer: Peer) -> float | None:
        """``|x - C(x)| / |x|`` of a tensor as one worker has it, without a memory; None: x is not finite. See
        :func:`grace.run.distortion.measure_distortion`.
        """

    def refuse(self, method: Method[Any]) -> str:
        """The reason why a method cannot exchange so; empty: it can."""

    def likeness(self, method: Method[Any]) -> Hashable:
        """The same of methods that exchange alike here."""


@dataclass(frozen=True, slots=True)
class ToAll:
    """All workers get the mean: see :meth:`grace.Method.exchange`."""

    joins = False

    def exchange(self, worker: Worker, method: Method[Any], xs: Mapping[str, Tensor]) -> Exchange[None]:
        """See :class:`Way`."""
        for name, out in (yield from worker.exchange(dict(xs))).items():
            if out.mean.data_ptr() != xs[name].data_ptr():
                xs[name].copy_(out.mean)

    def traffic(self, method: Method[Any], shape: Sequence[int], peer: Peer) -> Traffic | None:
        """See :class:`Way`."""
        return method.traffic(torch.empty(tuple(shape), device="meta", dtype=torch.float32), peer)

    def wire_bits(self, method: Method[Any], shape: Sequence[int], world: int) -> float | None:
        """See :class:`Way`. Between two workers what is sent is the wire."""
        traffic = self.traffic(method, shape, Peer(0, 2))
        return None if traffic is None else 8.0 * traffic.sent

    def lost(self, method: Method[Any], x: Tensor, peer: Peer) -> float | None:
        """See :class:`Way`."""
        return measure_distortion(method, x, method.init(x), peer)

    def refuse(self, method: Method[Any]) -> str:
        """See :class:`Way`."""
        return ""

    def likeness(self, method: Method[Any]) -> Hashable:
        """See :class:`Way`."""
        return method


@dataclass(frozen=True, slots=True)
class ToOwners:
    """A tensor is W rows, of which each worker gets the mean of its own: see :meth:`grace.Method.scatter`.

    plain: whether what is not compressed is one reduce-scatter of sums, as it is. dtype: in which.
    """

    plain: bool = True
    dtype: torch.dtype = torch.float32

    joins = True

    def exchange(self, worker: Worker, method: Method[Any], xs: Mapping[str, Tensor]) -> Exchange[None]:
        """See :class:`Way`. All are left as they are: rows are copied, as a session takes them."""
        rows = {name: _rows(x, worker.world) for name, x in xs.items()}
        if self._travels_plain(method):
            for part in rows.values():
                part[worker.rank].copy_((yield from sum_rows(part.to(self.dtype))))
            return
        outs = yield from worker.scatter({name: part.to(torch.float32, copy=True) for name, part in rows.items()})
        for name, part in rows.items():
            part[worker.rank].copy_(outs[name].mean.mul_(worker.world))

    def traffic(self, method: Method[Any], shape: Sequence[int], peer: Peer) -> Traffic | None:
        """See :class:`Way`. Rows are padded to one length."""
        rows = torch.empty(peer.world, -(-math.prod(shape) // peer.world), device="meta", dtype=torch.float32)
        if self._travels_plain(method):
            return cost(ReduceScatter(rows.to(self.dtype)), peer.rank, peer.world)
        return method.scatter_traffic(rows, peer)

    def wire_bits(self, method: Method[Any], shape: Sequence[int], world: int) -> float | None:
        """See :class:`Way`. A worker sends all rows but its own."""
        peer = Peer(0, max(2, world))
        traffic = self.traffic(method, shape, peer)
        return None if traffic is None else 8.0 * traffic.sent * peer.world / (peer.world - 1)

    def lost(self, method: Method[Any], x: Tensor, peer: Peer) -> float | None:
        """See :class:`Way`. ``x`` is ``[W, c]``, and each row is compressed by itself."""
        lost = energy = 0.0
        for row in x:
            share = measure_distortion(method, row, method.init(row), peer)
            if share is None:
                return None
            square = float(torch.linalg.vector_norm(row, dtype=torch.float64)) ** 2
            lost, energy = lost + share**2 * square, energy + square
        return math.sqrt(lost / energy) if energy else 0.0

    def refuse(self, method: Method[Any]) -> str:
        """See :class:`Way`."""
        return "" if method.has_scatter else f"{spell(method)} has an exchange of its own, which has no reduce-scatter"

    def likeness(self, method: Method[Any]) -> Hashable:
        """See :class:`Way`. Whatever the communicator, rows go to their owners in one all-to-all."""
        return tuple(
            (type(layer).__name__, *(str(getattr(layer, name)) for name in own_fields(type(layer))))
            for layer in layers(method)
            if not isinstance(layer, Communicator)
        )

    def _travels_plain(self, method: Method[Any]) -> bool:
        return self.plain and method == NONE


TO_ALL = ToAll()


def _rows(x: Tensor, world: int) -> Tensor:
    """``[W, c]``, without the numbers of x, of any shape, that no row has room for."""
    flat = x.view(-1)
    return flat[: flat.numel() // world * world].view(world, -1)
