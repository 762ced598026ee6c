"""Each worker exchanges its momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import torch
from torch import Tensor

from grace.collectives import Exchange
from grace.errors import CompositionError
from grace.knobs import Range, as_call
from grace.memories.base import Memory
from grace.method import Exchanged, Method
from grace.peer import Peer
from grace.registry.recipes import register_memory

S = TypeVar("S")


@register_memory("momentum")
@dataclass(frozen=True, slots=True)
class Momentum(Memory[S]):
    """Each worker exchanges its momentum instead of its gradient: ``m = beta m + (1 - beta) g``; exchange m.

    With a majority vote this is SIGNUM. Use an optimizer without momentum of its own.

    Args:
        method: the method to wrap, with or without :class:`ErrorFeedback` inside.
        beta: decay, in [0, 1).

    State: float32, as large as the gradient. Reference: Bernstein et al., ICML 2018, section 3.
    """

    beta: Annotated[float, Range(0, below=1)] = 0.9

    def exchange(self, x: Tensor, state: tuple[Tensor, S], peer: Peer) -> Exchange[Exchanged[tuple[Tensor, S]]]:
        memory, inner = state
        m = peer.lent.swap_in(memory)
        torch.mul(memory, self.beta, out=m).add_(x, alpha=1 - self.beta)
        lent = peer.lent.scratch(tuple(x.shape), x, memory.dtype).copy_(m)
        out = yield from self.method.exchange(lent, inner, peer)
        if out.finite and bool(out.mean.isfinite().all()):
            memory, m = m, memory
        peer.lent.swap_out(m)
        return Exchanged(out.mean.to(x.dtype), None, (memory, out.state), out.finite)

    def kinds(self, state: tuple[Tensor, S]) -> Any:
        return ("own", self.method.kinds(state[1]))

    def owed(self, state: tuple[Tensor, S]) -> Tensor | None:
        return self.method.owed(state[1])

    def with_memory(self) -> Method[Any]:
        raise CompositionError(
            f"{as_call(self)} sends a momentum, so what it did not send is not a part of the gradient; "
            "put the memory inside: Momentum(ErrorFeedback(...))"
        )
