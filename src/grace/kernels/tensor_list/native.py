"""The native kernels for what tensors of a bucket have in common."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from grace.flags.finite import on_host
from grace.kernels.tensor_list import TensorList


def poison_many(flags: Tensor, many: TensorList) -> Any:
    return None if on_host(flags.device) and bool(flags.all()) else NotImplemented
