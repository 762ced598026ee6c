"""The bindings of native kernels for several tensors: one call of native code for all of them.

A library that was built before that could be leaves them to the reference; so do numbers of other types than float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grace.compute import native
from grace.kernels.call_table import possible
from grace.kernels.finite.many import Finiteness, Sums
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.native import fill


def clear_many(flags: Tensor, many: TensorList) -> Any:
    return fill(flags, many, 0.0)


def finite_many(flags: Tensor, many: TensorList) -> Any:
    if not _takes(many):
        return NotImplemented
    finite = many.once(Finiteness, lambda: Finiteness(many.sizes)).run(many.addresses[0])
    return flags & _flags(finite) if 0 in finite else flags


def round_many(message: Tensor, many: TensorList, rounded: TensorList, weight: float) -> Any:
    """Copies ``[1, n_t]`` float32, which is not rounded."""
    if weight != 1.0 or not (_takes(many) and _takes(rounded)):
        return NotImplemented
    copies = many.once("copies", lambda: Sums(many.sizes, memory=False))
    finite = copies.run(many.addresses[0], 0, rounded.addresses[0])
    return _flags(finite) if 0 in finite else many.all_set


def widen_many(message: Tensor, rounded: TensorList, many: TensorList) -> Any:
    if not (_takes(many) and _takes(rounded)):
        return NotImplemented
    zeros = many.once("zeros", lambda: torch.zeros(max(many.sizes), dtype=torch.float32, device="cpu"))  # -0 becomes 0
    sums = many.once("sums", lambda: Sums(many.sizes, memory=True))
    nothing = native.address("zeros", zeros, torch.float32, zeros.numel())
    finite = sums.run(rounded.addresses[0], nothing, many.addresses[0])
    return _flags(finite) if 0 in finite else many.all_set


def _takes(many: TensorList) -> bool:
    """True if native code can go through these by one call."""
    return many.dtype is torch.float32 and not many.gap[0] and many.rows == 1 and possible()


def _flags(finite: list[int]) -> Tensor:
    return torch.tensor(finite, device="cpu") != 0
