"""The bindings of native kernels for several tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grace.compute import native
from grace.kernels.call_table import ROWS, THREADS, CallTable, possible
from grace.kernels.finite import native as declared  # noqa: F401 - says what the kernel takes
from grace.kernels.tensor_list import TensorList


def finite_many(flags: Tensor, many: TensorList) -> Any:
    if many.dtype is not torch.float32 or many.gap[0] or many.rows > 1 or not possible():
        return NotImplemented
    kernel = native.c.finite
    table = many.once(id(kernel), lambda: CallTable(kernel, [(ROWS, n, THREADS) for n in many.sizes]))
    table.put(ROWS, many.addresses[0])
    done = table.run()
    return flags if bool(done.all()) else flags & (done != 0)
