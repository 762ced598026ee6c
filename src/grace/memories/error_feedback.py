"""Error feedback: what was not sent is added to the next gradient."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from grace.collectives import Exchange, Traffic
from grace.errors import CompositionError
from grace.kernels.finite import sum_finite
from grace.knobs import Positive, Share, as_call
from grace.learning_rate import lr_ratio
from grace.memories.base import Memory
from grace.method import Exchanged, Method
from grace.peer import Peer
from grace.registry.recipes import register_memory

S = TypeVar("S")
_EFState: TypeAlias = tuple[Any, ...]  # memory, the method's state, and with follow_lr the last learning rate


@register_memory("residual")
@dataclass(frozen=True, slots=True)
class ErrorFeedback(Memory[S]):
    """What was not sent this time is added to the gradient next time.

    Equation 4 of the survey: ``p = beta e + gamma g``; exchange p; ``e = p - (my share of what was applied)``.

    With ``follow_lr``, ``p = beta (old lr / new lr) e + gamma g``: e stays right in units of the update, which matters
    where the learning rate changes. A step with a learning rate of 0 applies nothing and leaves e as it is.

    Args:
        method: the method to wrap; one whose error stays bounded, see :meth:`grace.Method.with_memory`.
        beta: decay of the memory, in (0, 1].
        gamma: weight of the gradient, > 0 and finite.
        follow_lr: whether e follows the learning rate; then :attr:`grace.Peer.lr` must say what it is.

    State: float32, as large as the gradient. References: Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019.
    """

    beta: Share = 1.0
    gamma: Positive = 1.0
    follow_lr: bool = field(default=False, repr=False)  # off, it does not show

    def __post_init__(self) -> None:
        Memory.__post_init__(self)
        object.__setattr__(self, "method", self.method.with_memory())

    def init(self, like: Tensor) -> _EFState:
        memory, inner = Memory.init(self, like)
        return (memory, inner, 0.0) if self.follow_lr else (memory, inner)

    def exchange(self, x: Tensor, state: _EFState, peer: Peer) -> Exchange[Exchanged[_EFState]]:
        memory, inner, *last = state
        weight = self.beta * (lr_ratio(last[0], peer.lr) if last else 1.0)
        plain = x.dtype == torch.float32 and x.is_contiguous()
        peer = replace(peer, lr=peer.lr if self.follow_lr else None).lending(keep_rest=True, spare=x if plain else None)
        rest = peer.lent.swap_in(memory)  # the memory stays as it is until the exchange has succeeded
        if plain and self.method.adds_memory and self.gamma == weight == 1:
            p, peer = x, peer.lending(memory=memory, rest=rest)
        elif plain and self.gamma == weight == 1 and x.device.type == "cpu":
            p = rest
            sum_finite(x, memory, rest)  # faster than torch.add; who uses p looks for inf and NaN
        elif self.gamma == 1:
            p = torch.add(x, memory, alpha=weight, out=rest)
        else:
            p = torch.mul(x, self.gamma, out=rest).add_(memory, alpha=weight)
        out = yield from self.method.exchange(p, inner, peer)
        if out.finite and (not last or peer.lr):
            assert out.rest is not None, f"{as_call(self.method)} did not keep the rest"
            if out.rest.data_ptr() != rest.data_ptr() or out.rest.dtype != rest.dtype:
                rest.copy_(out.rest)
            memory, rest = rest, memory
            last = [peer.lr] if last else []
        peer.lent.swap_out(rest)
        return Exchanged(out.mean.to(x.dtype), None, (memory, out.state, *last), out.finite)

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        return Memory.traffic(self, like, peer.lending(keep_rest=True))

    def kinds(self, state: _EFState) -> Any:
        _, inner, *last = state
        return ("debt", self.method.kinds(inner), *("own" for _ in last))

    def owed(self, state: _EFState) -> Tensor | None:
        memory: Tensor = state[0]
        inner = self.method.owed(state[1])
        return memory if inner is None else memory + inner

    def with_memory(self) -> Method[Any]:
        raise CompositionError(
            f"{as_call(self)} already has a memory; a second ErrorFeedback around it would stay empty"
        )
