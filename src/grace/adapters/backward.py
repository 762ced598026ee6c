"""When a backward pass ends."""

from __future__ import annotations

from collections.abc import Callable

import torch


def at_end_of_backward(callback: Callable[[], None]) -> bool:
    """Whether there is a backward pass, at the end of which ``callback`` will be called."""
    try:
        torch.autograd.Variable._execution_engine.queue_callback(callback)
    except RuntimeError:  # outside of a backward pass: in DistributedDataParallel's join()
        return False
    return True
