"""The bindings of native kernels for several tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grace.compute import native
from grace.kernels.call_table import possible
from grace.kernels.finite.many import Finiteness
from grace.kernels.tensor_list import TensorList


def finite_many(flags: Tensor, many: TensorList) -> Any:
    if many.dtype is not torch.float32 or many.gap[0] or many.rows > 1 or not possible():
        return NotImplemented
    finite = many.once(id(native.c.finite), lambda: Finiteness(many.sizes)).run(many.addresses[0])
    return flags if all(finite) else flags & torch.tensor(finite, dtype=torch.bool, device="cpu")
