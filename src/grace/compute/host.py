"""Tables in the host's memory, whatever torch's default dtype and default device are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def host_int64(values: Any) -> Tensor:
    """Integers, or nested sequences of them of any shape, as an int64 tensor on the host."""
    return torch.tensor(values, dtype=torch.int64, device="cpu")
