"""Operations on several tensors on the host, where one call does for all, and flags are read at no cost."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grace.compute import native
from grace.flags.finite import on_host
from grace.kernels.call_table import possible
from grace.kernels.finite.many import Finiteness
from grace.kernels.tensor_list import TensorList


def finite_many(flags: Tensor, many: TensorList) -> Any:
    if many.dtype is not torch.float32 or many.gap[0] or many.rows > 1 or not possible():
        return NotImplemented
    finite = many.once(id(native.c.finite), lambda: Finiteness(many.sizes)).run(many.addresses[0])
    return flags if all(finite) else flags & torch.tensor(finite, dtype=torch.bool, device="cpu")


def round_many(message: Tensor, many: TensorList, rounded: TensorList, weight: float) -> Any:
    if not on_host(many.device):
        return NotImplemented
    products = torch._foreach_mul(list(many.xs), weight)
    torch._foreach_copy_(list(rounded.xs), products)
    if bool(message.isfinite().all()):
        return many.all_set
    return torch.stack([product.isfinite().all() for product in products])


def widen_many(message: Tensor, rounded: TensorList, many: TensorList) -> Any:
    if not on_host(many.device):
        return NotImplemented
    message.add_(0.0)
    torch._foreach_copy_(list(many.xs), list(rounded.xs))
    if bool(message.isfinite().all()):
        return many.all_set
    return torch.stack([x.isfinite().all() for x in many.xs])
