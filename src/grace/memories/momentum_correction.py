"""The memory of Deep Gradient Compression. Letters: u the velocity, v what has not been sent yet, m the momentum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from grace.collectives import Exchange, Traffic
from grace.contract.knobs import Positive, Range, as_call
from grace.contract.lent import Lent
from grace.contract.loan import narrow
from grace.contract.method import Exchanged, Method
from grace.contract.needs import ACCUMULATES, NOTHING, Needs
from grace.contract.peer import Peer, Peers
from grace.contract.workspace import Workspace
from grace.errors import CompositionError
from grace.flags.finite import choose_, on_host
from grace.kernels import accelerate, forget_sent
from grace.memories.base import Memory, Verb, drop_overflow_
from grace.memories.many import scale_many_, takes_many
from grace.memories.velocities import VelocityBucket
from grace.registry.recipes import register_memory

S = TypeVar("S")


class CorrectionState(NamedTuple):
    """memory: ``[2, ...]``: u and v, each like the gradient, float32 or float64. inner: the method's state."""

    memory: Tensor
    inner: Any


@register_memory("dgc")
@dataclass(frozen=True, slots=True)
class MomentumCorrection(Memory[S]):
    """Momentum before compression: each worker accumulates velocities, and sends the largest sums of them.

    ``u = m u + g;  v = v + u`` (Nesterov: ``u = m (u + g);  v = v + u + g``); exchange v; what was not sent is the new
    v; where something was sent, u = 0 (factor masking)

    Takes the place of the optimizer's momentum, which must be 0, or momentum would count twice. A method that sends everything
    (``none:memory=dgc``) leaves v = 0 and is not masked: that is plain momentum, which small tensors beside a bare method with
    this memory have by default.

    Args:
        method: the method to wrap: a sparsifier. Others touch every element, and masking would end all momentum.
        momentum: m, in [0, 1).
        nesterov: look ahead.
        masking: forget the velocity of what was sent, so that a stale one does not go on.
        clip: each worker's gradient is cut to the norm clip / sqrt(W), per tensor, > 0 and finite; None: no clipping.

    State: :class:`CorrectionState`; u and v are float32, each as large as the gradient; as much again is borrowed
    during an exchange.
    Differs from the paper: gradients are clipped per tensor, as in the authors' code, not over the whole model.
    Reference: Lin, Han, Mao, Wang and Dally, "Deep Gradient Compression: Reducing the Communication Bandwidth for
    Distributed Training", ICLR 2018, arXiv 1712.01887, sections 3.2 and 3.3.
    """

    momentum: Annotated[float, Range(0, below=1)] = 0.9
    nesterov: bool = False
    masking: bool = True
    clip: Positive | None = None

    def __post_init__(self) -> None:
        Memory.__post_init__(self)
        object.__setattr__(self, "method", self.method.with_memory())

    @property
    def needs(self) -> Needs:
        return self.method.needs | (ACCUMULATES if self.momentum else NOTHING)

    @property
    def loses_nothing(self) -> bool:
        return self.momentum == 0 and self.clip is None

    def init(self, like: Tensor) -> CorrectionState:
        v, inner = Memory.init(self, like)
        return CorrectionState(torch.stack([torch.zeros_like(v), v]), inner)

    def _wrap(self, verb: Verb, x: Tensor, state: CorrectionState, peer: Peer) -> Exchange[Exchanged[CorrectionState]]:
        memory, inner = state
        successor = peer.lent.borrow_successor(memory)  # the memory stays as it is until the exchange has succeeded
        u, v = successor
        if self.clip is not None:
            _clip_(x, self.clip / math.sqrt(peer.world))
        accelerate(x, memory, self.momentum, self.nesterov, successor)
        spare = x if x.dtype == torch.float32 and x.is_contiguous() and not self.nesterov else None
        out = yield from verb(v, inner, peer.lending(keep_rest=True, spare=spare, applied_as=None))
        finite = out.finite
        if finite is not False:
            assert out.rest is not None, f"{as_call(self.method)} did not keep the rest"
            if out.rest.data_ptr() != v.data_ptr() or out.rest.dtype != v.dtype:
                v.copy_(out.rest)
            if self.masking and not self._sends_all(x):
                forget_sent(u, memory[1], x if self.nesterov else None, v)
        mean, finite = narrow(out.mean, peer.lent.applied_as or x.dtype, finite, v)
        drop_overflow_(finite, memory)
        if finite is not False:
            memory, successor = choose_(finite, successor, memory), memory
        peer.lent.give_back(successor)
        return Exchanged(mean, None, CorrectionState(memory, out.state), finite)

    def batches(self, like: Tensor) -> bool:
        """True where kernels take many tensors, of any shapes: on an accelerator."""
        exact = type(self) is MomentumCorrection  # a subclass may exchange otherwise
        return exact and takes_many(like.device) and self.method.adds_memory and self.method.batches(like)

    def exchange_all(
        self, xs: Sequence[Tensor], states: Sequence[Any], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[Any]]]:
        """The method inside adds up the new debts; see :mod:`grace.memories.velocities`."""
        if not isinstance(peers, Peers) or not self.batches(xs[0]):
            return (yield from Method.exchange_all(self, xs, states, peers))
        memories, lent = [state[0] for state in states], peers.like.lent
        bucket = VelocityBucket.of(xs, memories, peers, nesterov=self.nesterov)
        if bucket is None:
            return (yield from Method.exchange_all(self, xs, states, peers))
        if self.clip is not None:
            _clip_all_(xs, self.clip / math.sqrt(peers.like.world), lent.workspace)
        like = replace(peers.like, lent=Lent(workspace=lent.workspace))
        given, lending = bucket.accelerate(self.momentum, like, peers.names)
        outs = yield from self.method.exchange_all(given, [state[1] for state in states], lending)
        finite = bucket.settle(outs, [self.masking and not self._sends_all(x) for x in xs])
        for memory in memories:
            lent.give_back(memory)
        after = [CorrectionState(e, out.state) for e, out in zip(bucket.successors, outs, strict=True)]
        results = zip(bucket.means, xs, after, finite.unbind(0), strict=True)
        return [Exchanged(mean.view(x.shape), None, state, flag) for mean, x, state, flag in results]

    def _sends_all(self, like: Tensor) -> bool:
        return like.numel() > 0 and self.method.facts(like).contraction == 1

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        return Memory.traffic(self, like, peer.lending(keep_rest=True))

    def kinds(self, state: CorrectionState) -> Any:
        """V is the debt; u, before it in one tensor, is the worker's own."""
        return (("own", "debt"), self.method.kinds(state[1]))

    def owed(self, state: CorrectionState) -> Tensor | None:
        """v, which gradients have earned; what the velocity would still add has not been earned."""
        return state[0][1]

    def uncompressed(self, plain: Method[Any]) -> Method[Any]:
        return plain if self.loses_nothing else replace(self, method=plain)

    def with_memory(self) -> Method[Any]:
        raise CompositionError(f"{as_call(self)} already has a memory; a second one around it would stay empty")


def _clip_all_(xs: Sequence[Tensor], limit: float, workspace: Workspace | None) -> None:
    """As :func:`_clip_` of each, of any shapes and one dtype, on an accelerator: in a fixed number of calls."""
    norms = torch._foreach_norm(list(xs), 2, torch.float64)
    if not scale_many_(xs, _factors(torch.stack(norms), limit), workspace):
        for x in xs:
            _clip_(x, limit)


def _factors(norms: Tensor, limit: float) -> Tensor:
    """Scales of tensors with these norms, float64 of any shape; 1 for one with an inf or NaN."""
    return torch.where((norms > limit) & (norms < math.inf), limit / norms, 1.0)


def _clip_(x: Tensor, limit: float) -> None:
    """Scales x to a norm of at most ``limit``. An x with an inf or NaN is left as it is, for others to find."""
    norm = torch.linalg.vector_norm(x, dtype=torch.float64)
    if not on_host(x.device):
        x.mul_(_factors(norm, limit))
    elif limit < float(norm) < math.inf:
        x.mul_(limit / float(norm))
