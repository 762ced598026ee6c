"""Memories: methods that wrap a method and carry something from step to step.

A memory's successor is made in storage of its own, and takes its place only after the last collective has
answered, and only if every rank's gradient was finite: after a failed exchange or an inf or NaN anywhere the memory is what it
was before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor

from grace.collectives import Exchange, Traffic
from grace.errors import CompositionError, out_of_range
from grace.kernels.finite import sum_finite
from grace.method import Exchanged, Facts, Method, Peer, lr_ratio, spelled

S = TypeVar("S")
_EFState: TypeAlias = tuple[Any, ...]  # memory, the method's state, and with follow_lr the last learning rate


def _state_dtype(x: Tensor) -> torch.dtype:
    """Memories are float32, or float64 where the gradient is."""
    return torch.promote_types(x.dtype, torch.float32)


def _swap_in(memory: Tensor, peer: Peer) -> Tensor:
    """Storage for the memory's successor."""
    return torch.empty_like(memory) if peer.workspace is None else peer.workspace.swap_in(memory)


def _swap_out(memory: Tensor, peer: Peer) -> None:
    """The memory that has a successor, or the successor that was not needed."""
    if peer.workspace is not None:
        peer.workspace.swap_out(memory)


@dataclass(frozen=True, slots=True)
class _Memory(Method[Any], Generic[S]):
    method: Method[S]

    def __post_init__(self) -> None:
        if not isinstance(self.method, Method):
            raise CompositionError(
                f"{type(self).__name__} wraps a Method, got {spelled(self.method)}; "
                "put a communicator around a compressor, such as Allgather(...)"
            )

    def init(self, like: Tensor) -> Any:
        memory = torch.zeros(like.shape, dtype=_state_dtype(like), device=like.device)
        return memory, self.method.init(memory)

    @property
    def needs_shape(self) -> bool:
        return self.method.needs_shape

    def facts(self, like: Tensor) -> Facts:
        return self.method.facts(like)

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        memory = torch.empty(like.shape, dtype=_state_dtype(like), device="meta")
        return self.method.traffic(memory, peer)


@dataclass(frozen=True, slots=True)
class ErrorFeedback(_Memory[S]):
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

    beta: float = 1.0
    gamma: float = 1.0
    follow_lr: bool = field(default=False, repr=False)  # off, it does not show

    def __post_init__(self) -> None:
        _Memory.__post_init__(self)
        if not 0 < self.beta <= 1:
            raise out_of_range("ErrorFeedback", "beta", self.beta, "0 < beta <= 1")
        if not 0 < self.gamma < math.inf:
            raise out_of_range("ErrorFeedback", "gamma", self.gamma, "0 < gamma < inf")
        if not isinstance(self.follow_lr, bool):
            raise out_of_range("ErrorFeedback", "follow_lr", self.follow_lr, "True, False")
        object.__setattr__(self, "method", self.method.with_memory())

    def init(self, like: Tensor) -> _EFState:
        memory, inner = _Memory.init(self, like)
        return (memory, inner, 0.0) if self.follow_lr else (memory, inner)

    def exchange(self, x: Tensor, state: _EFState, peer: Peer) -> Exchange[Exchanged[_EFState]]:
        memory, inner, *last = state
        weight = self.beta * (lr_ratio(last[0], peer.lr) if last else 1.0)
        plain = x.dtype == torch.float32 and x.is_contiguous()
        peer = replace(peer, keep_rest=True, spare=x if plain else None, lr=peer.lr if self.follow_lr else None)
        rest = _swap_in(memory, peer)  # the memory stays as it is until the exchange has succeeded
        if plain and self.method.adds_memory and self.gamma == weight == 1:
            p, peer = x, replace(peer, memory=memory, rest=rest)
        elif plain and self.gamma == weight == 1 and x.device.type == "cpu":
            p = rest
            sum_finite(x, memory, rest)  # faster than torch.add; who uses p looks for inf and NaN
        elif self.gamma == 1:
            p = torch.add(x, memory, alpha=weight, out=rest)
        else:
            p = torch.mul(x, self.gamma, out=rest).add_(memory, alpha=weight)
        out = yield from self.method.exchange(p, inner, peer)
        if out.finite and (not last or peer.lr):
            assert out.rest is not None, f"{spelled(self.method)} did not keep the rest"
            if out.rest.data_ptr() != rest.data_ptr() or out.rest.dtype != rest.dtype:
                rest.copy_(out.rest)
            memory, rest = rest, memory
            last = [peer.lr] if last else []
        _swap_out(rest, peer)
        return Exchanged(out.mean.to(x.dtype), None, (memory, out.state, *last), out.finite)

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        return _Memory.traffic(self, like, replace(peer, keep_rest=True))

    def owed(self, state: _EFState) -> Tensor | None:
        memory: Tensor = state[0]
        inner = self.method.owed(state[1])
        return memory if inner is None else memory + inner

    def with_memory(self) -> Method[Any]:
        raise CompositionError(
            f"{spelled(self)} already has a memory; a second ErrorFeedback around it would stay empty"
        )


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

    mu: float = 0.9

    def __post_init__(self) -> None:
        ErrorFeedback.__post_init__(self)
        if not 0 <= self.mu < 1:
            raise out_of_range("DistEF", "mu", self.mu, "0 <= mu < 1")

    def init(self, like: Tensor) -> _EFState:
        state = ErrorFeedback.init(self, like)
        return torch.zeros_like(state[0]), state

    def exchange(self, x: Tensor, state: _EFState, peer: Peer) -> Exchange[Exchanged[_EFState]]:
        velocity, feedback = state
        m = _swap_in(velocity, peer)
        torch.mul(velocity, self.mu, out=m).add_(x)
        p = peer.scratch(tuple(x.shape), x, velocity.dtype)
        torch.mul(m, self.mu, out=p).add_(x)
        out = yield from ErrorFeedback.exchange(self, p, feedback, peer)
        if out.finite:
            velocity, m = m, velocity
        _swap_out(m, peer)
        return Exchanged(out.mean.to(x.dtype), None, (velocity, out.state), out.finite)

    def owed(self, state: _EFState) -> Tensor | None:
        return ErrorFeedback.owed(self, state[1])


@dataclass(frozen=True, slots=True)
class Momentum(_Memory[S]):
    """Each worker exchanges its momentum instead of its gradient: ``m = beta m + (1 - beta) g``; exchange m.

    With a majority vote this is SIGNUM. Use an optimizer without momentum of its own.

    Args:
        method: the method to wrap, with or without :class:`ErrorFeedback` inside.
        beta: decay, in [0, 1).

    State: float32, as large as the gradient. Reference: Bernstein et al., ICML 2018, section 3.
    """

    beta: float = 0.9

    def __post_init__(self) -> None:
        _Memory.__post_init__(self)
        if not 0 <= self.beta < 1:
            raise out_of_range("Momentum", "beta", self.beta, "0 <= beta < 1")

    def exchange(self, x: Tensor, state: tuple[Tensor, S], peer: Peer) -> Exchange[Exchanged[tuple[Tensor, S]]]:
        memory, inner = state
        m = _swap_in(memory, peer)
        torch.mul(memory, self.beta, out=m).add_(x, alpha=1 - self.beta)
        lent = peer.scratch(tuple(x.shape), x, memory.dtype).copy_(m)
        out = yield from self.method.exchange(lent, inner, peer)
        if out.finite and bool(out.mean.isfinite().all()):
            memory, m = m, memory
        _swap_out(m, peer)
        return Exchanged(out.mean.to(x.dtype), None, (memory, out.state), out.finite)

    def owed(self, state: tuple[Tensor, S]) -> Tensor | None:
        return self.method.owed(state[1])

    def with_memory(self) -> Method[Any]:
        raise CompositionError(
            f"{spelled(self)} sends a momentum, so what it did not send is not a part of the gradient; "
            "put the memory inside: Momentum(ErrorFeedback(...))"
        )
