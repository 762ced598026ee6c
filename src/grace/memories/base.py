"""What all memories share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from grace.collectives import Traffic
from grace.errors import CompositionError
from grace.facts import Facts
from grace.finite import Flag, either, fill_unless_, flag, on_host
from grace.kernels.finite import all_finite
from grace.knobs import as_call, check_knobs
from grace.method import Method
from grace.peer import Peer

S = TypeVar("S")


def state_dtype(x: Tensor) -> torch.dtype:
    """Memories are float32, or float64 where the gradient is."""
    return torch.promote_types(x.dtype, torch.float32)


def forget_overflowing_(finite: Flag, velocity: Tensor, weight: float, owed: Tensor | None) -> None:
    """Sets a velocity to zero that is so large that ``weight`` times it and what is owed overflow, if the step was not
    ``finite``: without that no later step would be finite, whatever the gradients are.
    """
    if velocity.numel() == 0:
        return
    size = velocity.abs().amax().double() * weight
    if owed is not None:
        size += owed.abs().amax()
    fits = flag(size <= torch.finfo(velocity.dtype).max)
    fill_unless_(either(finite, fits), velocity, 0.0)


def drop_overflow_(memory: Tensor) -> None:
    """Sets to zero what overflowed when it was kept, and would make all later steps non-finite."""
    if not on_host(memory.device) or not all_finite(memory):
        memory.nan_to_num_(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Memory(Method[Any], Generic[S]):
    """A method that wraps a method, and carries a tensor from step to step."""

    method: Method[S]

    def __post_init__(self) -> None:
        check_knobs(self)
        if not isinstance(self.method, Method):
            raise CompositionError(
                f"{type(self).__name__} wraps a Method, got {as_call(self.method)}; "
                "put a communicator around a compressor, such as Allgather(...)"
            )

    def init(self, like: Tensor) -> Any:
        memory = torch.zeros(like.shape, dtype=state_dtype(like), device=like.device)
        return memory, self.method.init(memory)

    @property
    def needs_shape(self) -> bool:
        return self.method.needs_shape

    def facts(self, like: Tensor) -> Facts:
        return self.method.facts(like)

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        memory = torch.empty(like.shape, dtype=state_dtype(like), device="meta")
        return self.method.traffic(memory, peer)
