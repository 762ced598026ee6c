"""Whether a tensor, or a sum of two, holds an inf or NaN."""

from __future__ import annotations

import torch
from torch import Tensor

from grace import backends, finite, native
from grace.finite import Flag
from grace.kernels import check

_FINITE = native.declare("finite", native.P, native.N, native.I)
_SUM = native.declare("sum_finite", native.P, native.P, native.P, native.N, native.I)


def all_finite(x: Tensor) -> Flag:
    """Whether there is no inf or NaN in x, of any floating type and shape: one pass, without a temporary of x's size."""
    if x.dtype is torch.float32 and x.device.type == "cpu" and x.is_contiguous():
        fast = backends.function(_FINITE)
        if fast is not None:
            return bool(fast(x.data_ptr(), x.numel(), native.threads()))
    return finite.all_finite(x)


def sum_finite(x: Tensor, memory: Tensor | None, out: Tensor) -> Flag:
    """``out = x + memory`` (or x, where there is none), and whether all of it is finite, in one pass.

    All are float32, contiguous and of one shape; ``out`` may be x or the memory.
    """
    fast = backends.function(_SUM) if x.device.type == "cpu" else None
    if fast is None:
        if memory is not None:
            torch.add(x, memory, out=out)
        elif out is not x:
            out.copy_(x)
        return all_finite(out)
    answer = fast(
        check.numbers("x", x),
        None if memory is None else check.numbers("memory", memory, x.shape),
        check.numbers("out", out, x.shape),
        *(x.numel(), native.threads()),
    )
    return bool(answer)
