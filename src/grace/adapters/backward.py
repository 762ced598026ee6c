"""When a gradient has come, and when a backward pass ends."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
from torch import Tensor


class Arrivals(Protocol):
    """Hears of gradients."""

    def arrive(self, name: str) -> None:
        """Notes that a backward pass has accumulated into this gradient."""


L = TypeVar("L", bound=Arrivals)


def on_arrival(listener: weakref.ref[L], name: str) -> Callable[[Tensor], None]:
    """A hook for ``register_post_accumulate_grad_hook`` that keeps no listener alive."""

    def arrive(_: Tensor) -> None:
        if (one := listener()) is not None:
            one.arrive(name)

    return arrive


def at_end_of_backward(callback: Callable[[], None]) -> bool:
    """Whether there is a backward pass, at the end of which ``callback`` will be called."""
    try:
        torch.autograd.Variable._execution_engine.queue_callback(callback)
    except RuntimeError:  # outside of a backward pass: in DistributedDataParallel's join()
        return False
    return True
