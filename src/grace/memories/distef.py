"""Error feedback after a momentum on each worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from grace.collectives import Exchange
from grace.contract.knobs import Range
from grace.contract.lent import Lent
from grace.contract.method import Exchanged, Method
from grace.contract.peer import Peer, Peers
from grace.contract.workspace import take_rooms
from grace.flags.finite import choose_
from grace.memories.base import Verb, drop_overflow_
from grace.memories.error_feedback import ErrorFeedback, FeedbackState, FollowingState
from grace.memories.many import stack_flags, takes_many
from grace.memories.successors import SuccessorBucket, average_
from grace.registry.recipes import register_memory

S = TypeVar("S")


class DistEFState(NamedTuple):
    """velocity: m, like the gradient, float32 or float64. feedback: the state of :class:`ErrorFeedback`, with e."""

    velocity: Tensor
    feedback: FeedbackState | FollowingState


@register_memory("distef")
@dataclass(frozen=True, slots=True)
class DistEF(ErrorFeedback[S], Generic[S]):
    """Nesterov momentum on each worker, before error feedback (dist-EF-SGD with blockwise momentum).

    ``m = mu m + g;  p = mu m + g + e``; exchange p; ``e = p - (my share of what was applied)``. The paper's algorithm is
    ``efsignsgd:communicator=scatterreduce,server_memory=true,memory=distef,follow_lr=true``. Use an optimizer without
    momentum of its own, and a weight decay that is not part of the gradient.

    Args:
        method, beta, gamma, follow_lr: as in :class:`ErrorFeedback`.
        mu: decay of the momentum, in [0, 1).

    State: :class:`DistEFState`; m and e are float32, each as large as the gradient.
    Reference: Zheng, Huang and Kwok, "Communication-Efficient
    Distributed Blockwise Momentum SGD with Error-Feedback", NeurIPS 2019, arXiv 1905.10936, algorithm 3.
    """

    mu: Annotated[float, Range(0, below=1)] = 0.9

    @property
    def loses_nothing(self) -> bool:
        return self.mu == 0 and self.beta == 1

    def init(self, like: Tensor) -> Any:
        state = ErrorFeedback.init(self, like)
        return DistEFState(torch.zeros_like(state.memory), state)

    def _wrap(self, verb: Verb, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        velocity, feedback = state
        m = peer.lent.borrow_successor(velocity)
        torch.mul(velocity, self.mu, out=m).add_(x)
        p = peer.lent.scratch(tuple(x.shape), x, velocity.dtype)
        torch.mul(m, self.mu, out=p).add_(x)
        applied_as = peer.lent.applied_as or x.dtype
        out = yield from ErrorFeedback._wrap(self, verb, p, feedback, peer.lending(applied_as=applied_as))
        drop_overflow_(out.finite, velocity)
        if out.finite is not False:
            velocity, m = choose_(out.finite, m, velocity), velocity
        peer.lent.give_back(m)
        return Exchanged(out.mean, None, DistEFState(velocity, out.state), out.finite)

    @property
    def _feedback(self) -> ErrorFeedback[S]:
        """The memory that the momentum is exchanged with."""
        return ErrorFeedback(self.method, self.beta, self.gamma, self.follow_lr)

    def batches(self, like: Tensor) -> bool:
        """True where kernels take many tensors, of any shapes: on an accelerator."""
        exact = type(self) is DistEF  # a subclass may exchange otherwise
        return exact and takes_many(like.device) and self._feedback.batches(like)

    def exchange_all(
        self, xs: Sequence[Tensor], states: Sequence[Any], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[Any]]]:
        """The momenta of all tensors, of any shapes, as in :meth:`exchange`."""
        old, bucket = [[state[0] for state in states]], None
        if isinstance(peers, Peers) and self.batches(xs[0]):
            bucket = SuccessorBucket.of(xs, old, peers)
        workspace = peers[0].lent.workspace if peers else None
        if bucket is None or workspace is None or not isinstance(peers, Peers):
            return (yield from Method.exchange_all(self, xs, states, peers))
        (m,), x = bucket.successors, bucket.numbers
        average_(m, bucket.kept[0], self.mu, x, 1.0)
        p = list(take_rooms(workspace, bucket.many.sizes, bucket.many.device))
        average_(p, m, self.mu, x, 1.0)
        like = replace(peers.like, lent=Lent(workspace=workspace, applied_as=xs[0].dtype))
        given, inner = bucket.give(p, xs), [state[1] for state in states]
        outs = yield from self._feedback.exchange_into(xs, given, inner, Peers(like, peers.names))
        (after,) = bucket.settle(stack_flags(outs, bucket.many.device), old)
        results = zip(outs, after, strict=True)
        return [Exchanged(out.mean, None, DistEFState(m, out.state), out.finite) for out, m in results]

    def kinds(self, state: Any) -> Any:
        return ("own", ErrorFeedback.kinds(self, state[1]))

    def owed(self, state: Any) -> Tensor | None:
        return ErrorFeedback.owed(self, state[1])
