"""Workers of one machine average in full precision; between machines goes a method."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grace.collectives import AllGather, Exchange, ReduceScatter, Traffic, along, cost
from grace.contract.conversation import label_parts
from grace.contract.facts import Facts
from grace.contract.knobs import Count, as_call, check_knobs, name_owner
from grace.contract.learning_rate import choose_rate
from grace.contract.loan import state_dtype
from grace.contract.method import SAID, Exchanged, Method, hold_everywhere, refuse_unpromised
from grace.contract.needs import Needs
from grace.contract.peer import Peer
from grace.errors import CompositionError, ConfigurationError
from grace.flags.finite import Flag, and_, choose_, fill_unless_
from grace.grid import Grid
from grace.kernels.finite import all_finite
from grace.registry.recipes import register_outer
from grace.transports.launchers import LOCAL_WORLDS, find_local_workers

INSIDE, BETWEEN = "machine", "machines"  # the axes


class HierarchicalState(NamedTuple):
    """inner: of the method, for this worker's part of the tensor. place: which of the machine's parts that is; -1 before the
    first exchange. shape: of the tensor.
    """

    inner: Any
    place: int
    shape: tuple[int, ...]


@register_outer("machine")
@dataclass(frozen=True, slots=True)
class Hierarchical(Method[HierarchicalState]):
    """Workers of one machine average in full precision, and only one tensor for each machine goes over the network.

    Of the average of its machine each of the S workers holds one part of S (a reduce-scatter); it exchanges that part with the
    workers who hold the same part on other machines, by the method; and the machine puts the parts together (an all-gather).
    So the network between machines, and the codec of a worker, see a 1/S of what the method would send alone, and a memory is
    of this part only: what it owes is owed by the machine. In strings: ``topk:ratio=0.01,machine=8``, and ``machine=local``
    for as many workers as the launcher says that a machine has. Ranks of a machine follow each other.

    Args:
        method: what goes between machines, with its memory.
        machine: S, the workers of one machine, >= 1. The number of workers is a multiple of it.

    Rounds: 2 inside a machine, one of a byte between all, and those of the method between machines.
    State: :class:`HierarchicalState`. Tensors of methods that need a shape are parted along their first dimension, as FSDP
        does; others into equal pieces.

    Example:
        >>> method("topk:ratio=0.01,memory=none,machine=8")
        Hierarchical(method=Allgather(compressor=TopK(ratio=0.01, index='auto', values='float32')), machine=8)
    """

    method: Method[Any]
    machine: Count = 1

    def __post_init__(self) -> None:
        refuse_unpromised(self.method)
        if not isinstance(self.method, Method) or isinstance(self.method, Hierarchical):
            raise CompositionError(f"Hierarchical wraps a Method of one level, got {as_call(self.method)}")
        check_knobs(self)

    @staticmethod
    def read_word(word: str) -> int:
        """The workers of this machine, for ``machine=local``: ``local_world_size`` where the string is given,
        GRACE_LOCAL_WORLD_SIZE, torchrun, mpiexec and Slurm say it.

        Raises:
            ConfigurationError: another word, or nobody says it.
        """
        if word == "local" and (workers := find_local_workers()) is not None:
            return workers
        raise ConfigurationError(
            f"machine={word}: legal: the workers of one machine, such as machine=8, or machine=local where the launcher says "
            f"it in one of {', '.join(LOCAL_WORLDS)}"
        )

    @property
    def needs(self) -> Needs:
        return self.method.needs

    @property
    def needs_shape(self) -> bool:
        return self.method.needs_shape

    @property
    def needs_epochs(self) -> bool:
        return self.method.needs_epochs

    def axes(self, world: int) -> Mapping[str, int]:
        if world % self.machine:
            raise ConfigurationError(
                f"machine={self.machine}: {world} workers are no whole number of machines with {self.machine} each; legal: "
                f"{', '.join(str(size) for size in range(1, world + 1) if world % size == 0)}"
            )
        return {BETWEEN: world // self.machine, INSIDE: self.machine}

    def init(self, like: Tensor) -> Any:
        part = like.new_zeros(self._part(like), dtype=state_dtype(like))
        return HierarchicalState(self.method.init(part), -1, tuple(like.shape))

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        peer = self._placed(peer)
        place = peer.axes[INSIDE][0]
        if x.numel() == 0:
            return Exchanged(x, None, state._replace(place=place))
        part = yield ReduceScatter(self._cut(x, peer), "mean", axis=INSIDE)
        # Ranks that hold different parts must make the same rounds, so all hear of an inf in one of them first.
        finite = yield from hold_everywhere(all_finite(part), part)
        if finite is False:
            return Exchanged.poisoned(x, state._replace(place=place))
        lent = replace(
            peer.lent, keep_rest=False, memory=None, rest=None, spare=None, applied_as=peer.lent.applied_as or x.dtype
        )
        out = yield from along(self.method.exchange(part, state.inner, replace(peer.on(BETWEEN), lent=lent)), BETWEEN)
        parts = yield AllGather(out.mean.to(x.dtype), axis=INSIDE)
        mean = parts.reshape(-1)[: x.numel()].view(x.shape)
        finite = and_(finite, all_finite(mean))  # a number of another part may have become too large
        fill_unless_(finite, mean, math.nan)
        inner = _choose(finite, out.state, state.inner)
        return Exchanged(mean, None, HierarchicalState(inner, place, state.shape), finite)

    def facts(self, like: Tensor) -> Facts:
        return replace(
            self.method.facts(torch.empty(self._part(like), device="meta", dtype=torch.float32)), payload=None
        )

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        if like.numel() == 0:
            return Traffic()
        peer = self._placed(peer)
        between, part = self.between(like, peer), torch.empty(self._part(like), dtype=state_dtype(like), device="meta")
        if between is None:
            return None
        whole = torch.empty(self.machine, *part.shape, dtype=part.dtype, device="meta")
        place = peer.axes[INSIDE]
        inside = cost(ReduceScatter(whole), *place) + cost(AllGather(part.to(like.dtype)), *place)
        return inside + cost(SAID, peer.rank, peer.world) + between

    def between(self, like: Tensor, peer: Peer) -> Traffic | None:
        """The part of :meth:`traffic` that goes between machines, the flag of a byte not counted."""
        part = torch.empty(self._part(like), dtype=state_dtype(like), device="meta")
        return self.method.traffic(part, self._placed(peer).on(BETWEEN))

    def uncompressed(self, plain: Method[Any]) -> Method[Any]:
        """The method ``plain``, over all workers, in one level."""
        return self.method.uncompressed(plain)

    def kinds(self, state: Any) -> Any:
        """A worker has the memory of its part, and another part among other workers."""
        return label_parts(state, "chunk")

    def owed(self, state: Any) -> Tensor | None:
        """The error that this worker's part owes, S times: the mean over all workers is then that over machines."""
        owed = self.method.owed(state.inner)
        if owed is None or state.place < 0:
            return None
        whole = owed.new_zeros(self.machine, *owed.shape)
        whole[state.place] = self.machine * owed
        return whole.view(-1)[: math.prod(state.shape)].view(state.shape)

    def distortion_of(self, x: Tensor, state: Any) -> tuple[Method[Any], Tensor, Any]:
        place = max(state.place, 0)
        return self.method, self._cut(x, None)[place].clone(), state.inner

    def _placed(self, peer: Peer) -> Peer:
        """The peer with its axes, which it may lack where nothing is exchanged."""
        if INSIDE in peer.axes and peer.axes[INSIDE][1] == self.machine:
            return peer
        return replace(peer, axes=Grid(self.axes(peer.world)).place(peer.rank))

    def _part(self, like: Tensor) -> tuple[int, ...]:
        """The shape of one worker's part."""
        if self.needs_shape and like.ndim > 1:
            return (-(-like.shape[0] // self.machine), *like.shape[1:])
        return (-(-like.numel() // self.machine),)

    def _cut(self, x: Tensor, peer: Peer | None) -> Tensor:
        """``x``, of any shape, as ``[S, *part]``, padded with zeros; x's own storage where it fits."""
        part, dtype = self._part(x), state_dtype(x)
        if self.machine * math.prod(part) == x.numel() and x.dtype == dtype and x.is_contiguous():
            return x.view(self.machine, *part)
        size = self.machine * math.prod(part)
        flat = x.new_empty(size, dtype=dtype) if peer is None else peer.lent.scratch(size, x, dtype)
        flat[: x.numel()].view(x.shape).copy_(x)
        flat[x.numel() :].zero_()
        return flat.view(self.machine, *part)


def _choose(finite: Flag, new: Any, old: Any) -> Any:
    """The new state if ``finite``, else the old one, whose tensors hold their numbers until the exchange has ended."""
    if finite is True or new is old:
        return new
    if isinstance(new, Tensor) and isinstance(old, Tensor):
        return choose_(finite, new, old) if new.data_ptr() != old.data_ptr() else new
    if isinstance(new, tuple) and isinstance(old, tuple):
        parts = [_choose(finite, a, b) for a, b in zip(new, old, strict=True)]
        return type(new)(*parts) if hasattr(new, "_fields") else tuple(parts)
    if finite is False:
        return old
    return choose_rate(finite, new, old) if isinstance(new, float) and isinstance(old, float) else new


name_owner(Hierarchical, "a method")
