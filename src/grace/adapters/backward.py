"""When a backward pass begins, and ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


def at_end_of_backward(callback: Callable[[], None]) -> bool:
    """Whether there is a backward pass, at the end of which ``callback`` will be called."""
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
