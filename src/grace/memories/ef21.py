"""EF21 and EF21 with momentum: memories that send differences, so that what is applied converges to the mean gradient.

Letters: g a worker's gradient, h its estimate of it, H the mean of all h (the same bits on all ranks), v a momentum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from grace.collectives import AllReduce, Exchange, Parts, Traffic, cost
from grace.contract.conversation import label_parts
from grace.contract.facts import Facts
from grace.contract.knobs import Share, as_call
from grace.contract.lent import Lent
from grace.contract.loan import narrow, state_dtype, succeed
from grace.contract.method import Exchanged, Method
from grace.contract.needs import AVERAGES, LAGS, Needs
from grace.contract.peer import Peer, Peers
from grace.contract.workspace import take_rooms
from grace.errors import CompositionError
from grace.flags.finite import ask_host, ask_host_of_all, fill_unless_
from grace.kernels.finite import all_finite
from grace.kernels.multi_tensor import finite_many
from grace.kernels.tensor_list import poison_many
from grace.memories.base import Memory
from grace.memories.many import lend_nothing, put, takes_many
from grace.memories.successors import SuccessorBucket, average_
from grace.registry.recipes import register_memory
from grace.wire import check_shape

S = TypeVar("S")
_SAMPLE = (64, 64)  # a shape at which a method is asked whether it is a contraction


class EF21State(NamedTuple):
    """local: h. shared: H. velocity: v, or None. started: 0 before the first dense step, then 1. inner: the method's."""

    local: Tensor
    shared: Tensor
    velocity: Tensor | None
    started: int
    inner: Any


@register_memory("ef21")
@dataclass(frozen=True, slots=True)
class EF21(Memory[S], Generic[S]):
    """Workers send the difference between their gradient and all that they have sent; all apply the sum of what was sent.

    ``c = C(g - h);  h += c;  H += mean of c;  apply H``; the first step is dense: ``h = g, H = mean of g``

    Args:
        method: the method to wrap; a contraction. Unbiased methods are scaled to be one.

    State: h and H, float32, each as large as the gradient. H is the mean of all h, and the same bits on all ranks. A
    lossy step leaves nothing owed, so a later method starts afresh. Traffic: the first step is a dense all-reduce in
    float32. Needs large batches, or :class:`EF21M`.

    Example:
        >>> method("topk:ratio=0.1,memory=ef21")
        EF21(method=Allgather(compressor=TopK(ratio=0.1, index='auto', values='float32')))

    Reference:
        Richtarik, Sokolov and Fatkhullin, "EF21: A New, Simpler, Theoretically Better, and Practically Faster Error
        Feedback", NeurIPS 2021, arXiv 2106.05203.
    """

    def __post_init__(self) -> None:
        Memory.__post_init__(self)
        object.__setattr__(self, "method", self.method.with_memory())
        delta = self.method.facts(torch.empty(_SAMPLE, device="meta", dtype=torch.float32)).contraction
        if delta is None or not delta > 0:
            raise CompositionError(
                f"{type(self).__name__} needs a contraction, and {as_call(self.method)} is none (delta={delta}); "
                "use memory=residual"
            )

    @property
    def needs(self) -> Needs:
        return self.method.needs | LAGS

    @property
    def loses_nothing(self) -> bool:
        return False

    def init(self, like: Tensor) -> EF21State:
        local, inner = Memory.init(self, like)
        velocity = None if self._follows_at_once else torch.zeros_like(local)
        return EF21State(local, torch.zeros_like(local), velocity, 0, inner)

    @property
    def _follows_at_once(self) -> bool:
        return True

    def _target(self, x: Tensor, state: EF21State, peer: Peer) -> Tensor:
        """The target of h, as a tensor that the caller may overwrite."""
        return x.to(state.local.dtype)

    def exchange(self, x: Tensor, state: EF21State, peer: Peer) -> Exchange[Exchanged[EF21State]]:
        if not state.started:
            return (yield from self._first(x, state, peer))
        local, shared, velocity, _, inner = state
        target = self._target(x, state, peer)
        difference = peer.lent.scratch(tuple(x.shape), x, local.dtype)
        torch.sub(target, local, out=difference)
        lent = peer.lent.scratch(tuple(x.shape), x, local.dtype).copy_(difference)
        out = yield from self.method.exchange(lent, inner, replace(peer, lr=None).lending(keep_rest=True, spare=None))
        if out.finite is False:
            return Exchanged.poisoned(x, state)
        assert out.rest is not None, f"{as_call(self.method)} did not keep the rest"
        applied = torch.add(shared, out.mean, out=peer.lent.scratch(tuple(x.shape), x, shared.dtype))
        mean, finite = narrow(applied, peer.lent.applied_as or x.dtype, out.finite)
        if finite is False:
            return Exchanged.poisoned(x, state)
        # what was not sent is exactly zero here, and h keeps its bits
        after = EF21State(
            succeed(finite, difference.sub_(out.rest).add_(local), local, peer.lent),
            succeed(finite, applied, shared, peer.lent),
            None if velocity is None else succeed(finite, target, velocity, peer.lent),
            1,
            out.state,
        )
        return Exchanged(fill_unless_(finite, mean, math.nan), None, after, finite)

    def batches(self, like: Tensor) -> bool:
        """True where kernels take many tensors, of any shapes: on an accelerator."""
        exact = type(self) in (EF21, EF21M)  # a subclass may exchange otherwise
        return exact and takes_many(like.device) and self.method.adds_memory and self.method.batches(like)

    def exchange_all(
        self, xs: Sequence[Tensor], states: Sequence[EF21State], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[EF21State]]]:
        """The differences of all tensors, of any shapes, as in :meth:`exchange`, or the first steps of all."""
        bucket, kept = None, [[state.local for state in states], [state.shared for state in states]]
        kept += [] if self._follows_at_once else [[state.velocity for state in states if state.velocity is not None]]
        started = {bool(state.started) for state in states}
        if isinstance(peers, Peers) and self.batches(xs[0]) and len(started) == 1:
            bucket = SuccessorBucket.of(xs, kept, peers)
        if bucket is None or not isinstance(peers, Peers):
            return (yield from Method.exchange_all(self, xs, states, peers))
        if started == {False}:
            return (yield from self._first_of_all(bucket, kept, xs, states))
        difference, applied = bucket.successors[:2]
        torch._foreach_copy_(difference, self._targets(bucket))
        torch._foreach_sub_(difference, bucket.kept[0])
        given = bucket.give(difference, xs)
        rests, lending = _lend_nothing(given, peers)
        outs = yield from self.method.exchange_all(given, [state.inner for state in states], lending)
        for out, rest in zip(outs, rests, strict=True):
            assert out.rest is not None, f"{as_call(self.method)} did not keep the rest"
            put(out.rest, rest)
        finite = bucket.take(outs)
        torch._foreach_copy_(applied, bucket.kept[1])
        torch._foreach_add_(applied, list(bucket.rooms.xs))
        bucket.give(applied, xs)
        finite = bucket.round(finite)
        torch._foreach_sub_(difference, rests)
        torch._foreach_add_(difference, bucket.kept[0])
        after = bucket.settle(finite, kept, drops=False)
        velocities: Sequence[Tensor | None] = after[2] if len(after) > 2 else [None] * len(xs)
        news = zip(after[0], after[1], velocities, outs, strict=True)
        results = zip(bucket.means(xs), news, finite.unbind(0), strict=True)
        return [
            Exchanged(mean, None, EF21State(local, shared, velocity, 1, out.state), fine)
            for mean, (local, shared, velocity, out), fine in results
        ]

    def _targets(self, bucket: SuccessorBucket) -> list[Tensor]:
        """As :meth:`_target`, of all tensors, ``[1, n]``."""
        return bucket.numbers

    def _first(self, x: Tensor, state: EF21State, peer: Peer) -> Exchange[Exchanged[EF21State]]:
        copy = peer.lent.scratch(tuple(x.shape), x, state.local.dtype).copy_(x)
        mean = yield AllReduce(copy)
        if not ask_host(all_finite(mean)):  # what the next step sends depends on it; once in a run
            return Exchanged.poisoned(x, state)
        velocity = None if state.velocity is None else succeed(True, x, state.velocity, peer.lent)
        local, shared = succeed(True, x, state.local, peer.lent), succeed(True, mean, state.shared, peer.lent)
        return Exchanged(x.copy_(shared), None, EF21State(local, shared, velocity, 1, state.inner))

    def _first_of_all(
        self,
        bucket: SuccessorBucket,
        kept: Sequence[Sequence[Tensor]],
        xs: Sequence[Tensor],
        states: Sequence[EF21State],
    ) -> Exchange[list[Exchanged[EF21State]]]:
        """As :meth:`_first`, of all tensors of a bucket: one question to the host."""
        workspace, sizes, numbers = bucket.lent.workspace, bucket.many.sizes, bucket.numbers
        assert workspace is not None
        message = workspace.take(sum(sizes), torch.float32, bucket.many.device)
        locals_, shared, *velocity = bucket.successors
        for copies in (locals_, *velocity, message[None].split_with_sizes(sizes, dim=1)):
            torch._foreach_copy_(list(copies), numbers)
        answer = yield AllReduce(message, donate=True, parts=Parts(tuple(range(len(xs))), sizes))
        check_shape("sum", answer, message.shape)
        torch._foreach_copy_(numbers, list(answer[None].split_with_sizes(sizes, dim=1)))
        torch._foreach_copy_(shared, numbers)
        finite = finite_many(torch.ones(len(xs), dtype=torch.bool, device=message.device), bucket.rooms)
        fine = ask_host_of_all(finite.unbind(0))  # what the next step sends depends on it; once in a run
        if bucket.narrow:
            torch._foreach_copy_(list(bucket.many.xs), numbers)
        poison_many(finite, bucket.many)
        after = bucket.settle(finite, kept, drops=False)
        velocities: Sequence[Tensor | None] = after[2] if velocity else [None] * len(xs)
        news = zip(bucket.means(xs), after[0], after[1], velocities, states, fine, strict=True)
        return [
            Exchanged(mean, None, EF21State(h, mean_h, v, int(good), state.inner), good)
            for mean, h, mean_h, v, state, good in news
        ]

    def kinds(self, state: EF21State) -> Any:
        """H is the same on all workers, yet a new one cannot take it over: its h must match, as after a dense first step."""
        velocity: Any = label_parts(state.velocity, "own")
        return EF21State("together", "together", velocity, "together", self.method.kinds(state.inner))  # type: ignore[arg-type]

    def facts(self, like: Tensor) -> Facts:
        """Facts of what is applied, for tensors like this one: no bound for a single step, which depends on the steps
        before.
        """
        inner = self.method.facts(like)
        return Facts(deterministic=inner.deterministic, randomness=inner.randomness, payload=inner.payload)

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        """Traffic for tensors like this one, of step 0, where the first step is dense, or of a later one."""
        if peer.step == 0:
            dense = torch.empty(like.shape, dtype=state_dtype(like), device="meta")
            return cost(AllReduce(dense), peer.rank, peer.world)
        return Memory.traffic(self, like, peer.lending(keep_rest=True))

    def with_memory(self) -> Method[Any]:
        raise CompositionError(f"{as_call(self)} is itself a memory, whose error vanishes; use it alone")


@register_memory("ef21m")
@dataclass(frozen=True, slots=True)
class EF21M(EF21[S], Generic[S]):
    """EF21 of a momentum (EF21-SGDM): converges with small batches too. Use an optimizer without momentum of its own.

    ``v = (1 - eta) v + eta g;  c = C(v - h);  h += c;  H += mean of c;  apply H``; first ``v = h = g``, dense

    Args:
        method: as in :class:`EF21`.
        eta: weight of the new gradient, in (0, 1]; 1 is EF21.

    State: v, h and H, float32, each as large as the gradient.

    Example:
        >>> method("topk:ratio=0.1,memory=ef21m,eta=0.2")
        EF21M(method=Allgather(compressor=TopK(ratio=0.1, index='auto', values='float32')), eta=0.2)

    Reference:
        Fatkhullin, Tyurin and Richtarik, "Momentum Provably Improves Error Feedback!", NeurIPS 2023, arXiv 2305.15155.
    """

    eta: Share = 0.1

    @property
    def _follows_at_once(self) -> bool:
        return False

    @property
    def needs(self) -> Needs:
        return self.method.needs | (LAGS if self.eta == 1 else AVERAGES)

    def _target(self, x: Tensor, state: EF21State, peer: Peer) -> Tensor:
        assert state.velocity is not None
        v = peer.lent.scratch(tuple(x.shape), x, state.local.dtype)
        return torch.mul(state.velocity, 1 - self.eta, out=v).add_(x, alpha=self.eta)

    def _targets(self, bucket: SuccessorBucket) -> list[Tensor]:
        average_(bucket.successors[2], bucket.kept[2], 1 - self.eta, bucket.numbers, self.eta)
        return bucket.successors[2]


def _lend_nothing(given: Sequence[Tensor], peers: Peers) -> tuple[list[Tensor], Peers]:
    """Room for the rests of these float32 tensors, of any shapes, ``[1, n]`` each; and who exchanges them, to whom it is lent
    with memories to add that change no number.
    """
    workspace = peers.like.lent.workspace
    assert workspace is not None
    rests = list(take_rooms(workspace, [x.numel() for x in given], given[0].device))
    memories = lend_nothing(given, workspace)
    like = replace(peers.like, lr=None, lent=Lent(workspace=workspace))
    places = [rest.view(x.shape) for rest, x in zip(rests, given, strict=True)]
    return rests, Peers(like, peers.names, memories, places, given)
