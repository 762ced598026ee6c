"""The native kernels for what tensors of a bucket have in common."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from grace.kernels.tensor_list import TensorList


def poison_many(flags: Tensor, many: TensorList) -> Any:
    return None if bool(flags.all()) else NotImplemented
