"""Events of backward passes: a gradient has come, a pass begins, a pass ends."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor


class ArrivalListener(Protocol):
    """Hears of gradients."""

    def arrive(self, name: str) -> None:
        """Notes that a backward pass has accumulated into this gradient."""


L = TypeVar("L", bound=ArrivalListener)


def on_arrival(listener: weakref.ref[L], name: str) -> Callable[[Tensor], None]:
    """A hook for ``register_post_accumulate_grad_hook`` that keeps no listener alive."""

    def arrive(_: Tensor) -> None:
        if (target := listener()) is not None:
            target.arrive(name)

    return arrive


def at_end_of_backward(callback: Callable[[], None]) -> bool:
    """True if there is a backward pass, at the end of which ``callback`` will be called."""
    try:
        torch.autograd.Variable._execution_engine.queue_callback(callback)
    except RuntimeError:  # outside of a backward pass: in DistributedDataParallel's join()
        return False
    return True


def find_tensors(output: Any) -> Iterator[Tensor]:
    """The tensors in what a model returns: in lists, tuples, mappings and dataclasses."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from find_tensors(value)
    elif isinstance(output, list | tuple | set):
        for value in output:
            yield from find_tensors(value)
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        for field in dataclasses.fields(output):
            yield from find_tensors(getattr(output, field.name, None))
