"""Methods that start later."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grace.collectives import AllReduce, Exchange, ReduceScatter, Traffic, cost
from grace.contract.facts import Facts
from grace.contract.knobs import Steps, as_call, check_knobs
from grace.contract.method import SAID, Exchanged, Method, check_rows, hold_everywhere, refuse_unpromised
from grace.contract.needs import Needs
from grace.contract.peer import Peer
from grace.errors import CompositionError
from grace.flags.finite import fill_unless_
from grace.kernels.finite import all_finite


@dataclass(frozen=True, slots=True)
class Delayed(Method[Any]):
    """Steps before ``start`` go uncompressed, as under ``none``; then the method begins. In strings: ``topk:start=1000``.

    Args:
        method: any method.
        start: the first step that the method takes, >= 0.

    Example:
        >>> method("topk:ratio=0.01,memory=none,start=100")
        Delayed(method=Allgather(compressor=TopK(ratio=0.01, index='auto', values='float32')), start=100)
    """

    method: Method[Any]
    start: Steps = 0

    def __post_init__(self) -> None:
        refuse_unpromised(self.method)
        if not isinstance(self.method, Method):
            raise CompositionError(f"Delayed wraps a Method, got {as_call(self.method)}")
        check_knobs(self)

    @property
    def needs(self) -> Needs:
        return self.method.needs

    @property
    def needs_shape(self) -> bool:
        return self.method.needs_shape

    @property
    def has_scatter(self) -> bool:
        return self.method.has_scatter

    @property
    def needs_epochs(self) -> bool:
        return self.method.needs_epochs

    def axes(self, world: int) -> Mapping[str, int]:
        return self.method.axes(world)

    def distortion_of(self, x: Tensor, state: Any) -> tuple[Method[Any], Tensor, Any]:
        return self.method.distortion_of(x, state)

    def init(self, like: Tensor) -> Any:
        return self.method.init(like)

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        if peer.step >= self.start:
            return (yield from self.method.exchange(x, state, peer))
        mean = yield AllReduce(x, "mean", donate=True)
        finite = all_finite(mean)
        if finite is False:
            return Exchanged.poisoned(mean, state)
        fill_unless_(finite, mean, math.nan)
        return Exchanged(mean, torch.zeros_like(mean) if peer.lent.keep_rest else None, state, finite)

    def scatter(self, rows: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        if peer.step >= self.start:
            return (yield from self.method.scatter(rows, state, peer))
        check_rows(rows, peer)
        mean = yield ReduceScatter(rows, "mean")
        finite = yield from hold_everywhere(all_finite(mean), mean)
        if finite is False:
            return Exchanged.poisoned(mean, state)
        fill_unless_(finite, mean, math.nan)
        return Exchanged(mean, torch.zeros_like(rows) if peer.lent.keep_rest else None, state, finite)

    def facts(self, like: Tensor) -> Facts:
        return self.method.facts(like)

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        if peer.step >= self.start:
            return self.method.traffic(like, peer)
        return cost(AllReduce(like), peer.rank, peer.world)

    def scatter_traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        if peer.step >= self.start:
            return self.method.scatter_traffic(like, peer)
        return cost(ReduceScatter(like), peer.rank, peer.world) + cost(SAID, peer.rank, peer.world)

    def kinds(self, state: Any) -> Any:
        return self.method.kinds(state)

    def owed(self, state: Any) -> Tensor | None:
        return self.method.owed(state)
