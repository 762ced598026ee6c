"""Tables in the host's memory, whatever torch's default dtype and default device are, and on their way to a device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grace.errors import ConfigurationError
from grace.flags.capturing import capturing
from grace.flags.finite import on_host


def host_int64(values: Any) -> Tensor:
    """Integers, or nested sequences of them of any shape, as an int64 tensor on the host."""
    return torch.tensor(values, dtype=torch.int64, device="cpu")


def to_device(x: Tensor, device: torch.device, *, waits: bool = False) -> Tensor:
    """A table of the host's, of any shape, on a device. The host goes on before it is there, and nobody changes x; with
    ``waits`` it is there, so that any stream may read it.

    Raises:
        ConfigurationError: work is captured: each replay would read the host's memory, where the table was.
    """
    if not on_host(device) and capturing():
        raise ConfigurationError(
            "a captured graph would copy tables from memory of the host that is used for something else by then; legal: at "
            "least one step as usual before each capture, also between two captures, whose gradients are where those of the "
            "capture are: buckets of DistributedDataParallel, or optimizer.zero_grad(set_to_none=False)"
        )
    return x.to(device, non_blocking=not waits)
