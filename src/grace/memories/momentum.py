"""Each worker exchanges its momentum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from grace.collectives import Exchange
from grace.contract.knobs import Range, as_call
from grace.contract.lent import Lent
from grace.contract.loan import narrow
from grace.contract.method import Exchanged, Method
from grace.contract.needs import AVERAGES, NOTHING, Needs
from grace.contract.peer import Peer, Peers
from grace.errors import CompositionError
from grace.flags.finite import and_, choose_
from grace.kernels.finite import all_finite
from grace.kernels.multi_tensor import finite_many
from grace.memories.base import Memory, Verb, drop_overflow_
from grace.memories.many import takes_many
from grace.memories.successors import SuccessorBucket, average_
from grace.registry.recipes import register_memory

S = TypeVar("S")


class MomentumState(NamedTuple):
    """velocity: m, like the gradient, float32 or float64. inner: the method's state."""

    velocity: Tensor
    inner: Any


@register_memory("momentum")
@dataclass(frozen=True, slots=True)
class Momentum(Memory[S]):
    """Each worker exchanges its momentum instead of its gradient: ``m = beta m + (1 - beta) g``; exchange m.

    With a majority vote this is SIGNUM. Use an optimizer without momentum of its own.

    Args:
        method: the method to wrap, with or without :class:`ErrorFeedback` inside.
        beta: decay, in [0, 1).

    With bf16 or f16 gradients, a memory inside owes what the cast of the mean loses; without one it is lost.

    State: :class:`MomentumState`; m is float32, as large as the gradient. Reference: Bernstein et al., ICML 2018, section 3.
    """

    beta: Annotated[float, Range(0, below=1)] = 0.9

    @property
    def needs(self) -> Needs:
        return self.method.needs | (AVERAGES if self.beta else NOTHING)

    @property
    def loses_nothing(self) -> bool:
        return False

    def init(self, like: Tensor) -> MomentumState:
        return MomentumState(*Memory.init(self, like))

    def _wrap(self, verb: Verb, x: Tensor, state: MomentumState, peer: Peer) -> Exchange[Exchanged[MomentumState]]:
        memory, inner = state
        m = peer.lent.borrow_successor(memory)
        torch.mul(memory, self.beta, out=m).add_(x, alpha=1 - self.beta)
        lent = peer.lent.scratch(tuple(x.shape), x, memory.dtype).copy_(m)
        out = yield from verb(lent, inner, peer.lending(applied_as=peer.lent.applied_as or x.dtype))
        mean, finite = narrow(out.mean, peer.lent.applied_as or x.dtype, out.finite)
        kept = and_(finite, all_finite(mean))
        drop_overflow_(kept, memory)
        if kept is not False:
            memory, m = choose_(kept, m, memory), memory
        peer.lent.give_back(m)
        return Exchanged(mean, None, MomentumState(memory, out.state), finite)

    def batches(self, like: Tensor) -> bool:
        """True where kernels take many tensors, of any shapes: on an accelerator."""
        exact = type(self) is Momentum  # a subclass may exchange otherwise
        return exact and takes_many(like.device) and self.method.batches(like)

    def exchange_all(
        self, xs: Sequence[Tensor], states: Sequence[Any], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[Any]]]:
        """The momenta of all tensors, of any shapes, as in :meth:`exchange`."""
        old, bucket = [[state[0] for state in states]], None
        if isinstance(peers, Peers) and self.batches(xs[0]):
            bucket = SuccessorBucket.of(xs, old, peers)
        if bucket is None or not isinstance(peers, Peers):
            return (yield from Method.exchange_all(self, xs, states, peers))
        average_(bucket.successors[0], bucket.kept[0], self.beta, bucket.numbers, 1 - self.beta)
        like = replace(peers.like, lent=Lent(workspace=peers.like.lent.workspace, applied_as=xs[0].dtype))
        given, inner = bucket.give(bucket.successors[0], xs), [state[1] for state in states]
        outs = yield from self.method.exchange_all(given, inner, Peers(like, peers.names))
        finite = bucket.round(bucket.take(outs))
        kept = finite if bucket.narrow else finite_many(finite, bucket.rooms)
        (after,) = bucket.settle(kept, old)
        results = zip(bucket.means(xs), after, outs, finite.unbind(0), strict=True)
        return [Exchanged(mean, None, MomentumState(m, out.state), fine) for mean, m, out, fine in results]

    def kinds(self, state: MomentumState) -> Any:
        return ("own", self.method.kinds(state[1]))

    def owed(self, state: MomentumState) -> Tensor | None:
        return self.method.owed(state[1])

    def with_memory(self) -> Method[Any]:
        raise CompositionError(
            f"{as_call(self)} sends a momentum, so what it did not send is not a part of the gradient; "
            "put the memory inside: Momentum(ErrorFeedback(...))"
        )
