"""Error feedback behind a momentum on each worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor

from grace.collectives import Exchange
from grace.knobs import Range
from grace.memories.error_feedback import ErrorFeedback
from grace.method import Exchanged
from grace.peer import Peer
from grace.registry.recipes import register_memory

S = TypeVar("S")
_EFState: TypeAlias = tuple[Any, ...]


@register_memory("distef")
@dataclass(frozen=True, slots=True)
class DistEF(ErrorFeedback[S], Generic[S]):
    """Nesterov's momentum on each worker, in front of error feedback (dist-EF-SGD with blockwise momentum).

    ``m = mu m + g;  p = mu m + g + e``; exchange p; ``e = p - (my share of what was applied)``. The paper's algorithm is
    ``efsignsgd:communicator=scatterreduce,server_memory=true,memory=distef,follow_lr=true``. Use an optimizer without
    momentum of its own, and a weight decay that is not part of the gradient.

    Args:
        method, beta, gamma, follow_lr: as in :class:`ErrorFeedback`.
        mu: decay of the momentum, in [0, 1).

    State: m and e, float32, each as large as the gradient. Reference: Zheng, Huang and Kwok, "Communication-Efficient
    Distributed Blockwise Momentum SGD with Error-Feedback", NeurIPS 2019, arXiv 1905.10936, algorithm 3.
    """

    mu: Annotated[float, Range(0, below=1)] = 0.9

    def init(self, like: Tensor) -> _EFState:
        state = ErrorFeedback.init(self, like)
        return torch.zeros_like(state[0]), state

    def exchange(self, x: Tensor, state: _EFState, peer: Peer) -> Exchange[Exchanged[_EFState]]:
        velocity, feedback = state
        m = peer.lent.swap_in(velocity)
        torch.mul(velocity, self.mu, out=m).add_(x)
        p = peer.lent.scratch(tuple(x.shape), x, velocity.dtype)
        torch.mul(m, self.mu, out=p).add_(x)
        out = yield from ErrorFeedback.exchange(self, p, feedback, peer)
        if out.finite:
            velocity, m = m, velocity
        peer.lent.swap_out(m)
        return Exchanged(out.mean.to(x.dtype), None, (velocity, out.state), out.finite)

    def kinds(self, state: _EFState) -> Any:
        return ("own", ErrorFeedback.kinds(self, state[1]))

    def owed(self, state: _EFState) -> Tensor | None:
        return ErrorFeedback.owed(self, state[1])
