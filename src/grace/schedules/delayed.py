"""Methods that start later."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from grace.collectives import AllReduce, Exchange, ReduceScatter, Traffic, cost
from grace.contract.facts import Facts
from grace.contract.knobs import Steps, as_call, check_knobs, name_owner
from grace.contract.method import SAID, Exchanged, Method, check_rows, hold_everywhere, refuse_unpromised
from grace.contract.needs import Needs
from grace.contract.peer import Peer, Peers
from grace.contract.together import can_go_together, mean_in_place
from grace.errors import CompositionError
from grace.flags.capturing import has_begun
from grace.flags.finite import fill_unless_
from grace.kernels.finite import all_finite
from grace.kernels.multi_tensor import finite_many
from grace.kernels.tensor_list import TensorList, poison_many


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

    def _begun(self, step: int) -> bool:
        return has_begun(step, self.start, f"start={self.start}")

    def init(self, like: Tensor) -> Any:
        return self.method.init(like)

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        if self._begun(peer.step):
            return (yield from self.method.exchange(x, state, peer))
        mean = yield AllReduce(x, "mean", donate=True)
        finite = all_finite(mean)
        if finite is False:
            return Exchanged.poisoned(mean, state)
        fill_unless_(finite, mean, math.nan)
        return Exchanged(mean, torch.zeros_like(mean) if peer.lent.keep_rest else None, state, finite)

    def batches(self, like: Tensor) -> bool:
        return type(self) is Delayed and self.method.batches(like)  # a subclass may exchange otherwise

    def exchange_all(
        self, xs: Sequence[Tensor], states: Sequence[Any], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[Any]]]:
        """As :meth:`exchange`, of tensors of any shapes: before the method begins, on an accelerator by two launches."""
        if peers and self._begun(peers[0].step):
            return (yield from self.method.exchange_all(xs, states, peers))
        many = self._find(xs, Peers.of(peers)) if peers else None
        workspace = peers[0].lent.workspace if peers else None
        if many is None or workspace is None:
            return (yield from Method.exchange_all(self, xs, states, peers))
        means = yield from mean_in_place(xs, workspace)
        if means[0] is not xs[0]:
            torch._foreach_copy_(list(xs), means)
        finite = finite_many(many.all_set, many)
        poison_many(finite, many)
        return [Exchanged(x, None, state, flag) for x, state, flag in zip(xs, states, finite.unbind(0), strict=True)]

    def _find(self, xs: Sequence[Tensor], peers: Peers) -> TensorList | None:
        """These tensors, of any shapes, if kernels for many can take them as they are."""
        workspace = peers.like.lent.workspace
        if workspace is None or peers.keep_rests or not can_go_together(xs, peers):
            return None
        sizes, device = tuple([x.numel() for x in xs]), xs[0].device
        key = (Delayed, device, sizes, peers.names)
        many: TensorList = workspace.kept.get(key) or TensorList(sizes, (), (), device)
        if not many.point(xs):
            return None
        workspace.kept[key] = many
        return many

    def scatter(self, rows: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        if self._begun(peer.step):
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
        if self._begun(peer.step):
            return self.method.traffic(like, peer)
        return cost(AllReduce(like), peer.rank, peer.world)

    def scatter_traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        if self._begun(peer.step):
            return self.method.scatter_traffic(like, peer)
        return cost(ReduceScatter(like), peer.rank, peer.world) + cost(SAID, peer.rank, peer.world)

    def uncompressed(self, plain: Method[Any]) -> Method[Any]:
        inner = self.method.uncompressed(plain)
        return plain if inner == plain else replace(self, method=inner)

    def kinds(self, state: Any) -> Any:
        return self.method.kinds(state)

    def owed(self, state: Any) -> Tensor | None:
        return self.method.owed(state)


name_owner(Delayed, "a method")
