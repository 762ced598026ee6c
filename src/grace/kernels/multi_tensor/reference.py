"""The specification: one tensor after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from grace.compute.portable import add_product
from grace.kernels.tensor_list import TensorList


def pad_many(storage: Tensor, many: TensorList, rooms: TensorList) -> None:
    _copy(many.xs, rooms.xs)
    if many.memories is not None:
        assert rooms.memories is not None
        _copy(many.memories, rooms.memories)


def sum_many(like: Tensor, many: TensorList) -> None:
    assert many.rests is not None
    if many.memories is None:
        _copy(many.xs, many.rests)
        return
    for x, memory, rest in zip(many.xs, many.memories, many.rests, strict=True):
        torch.add(x, memory, out=rest)


def weigh_many(weights: Tensor, share: float, many: TensorList, *, once: bool = True) -> None:
    assert many.memories is not None
    assert many.rests is not None
    for weight, x, memory, rest in zip(weights, many.xs, many.memories, many.rests, strict=True):
        part = x * share
        rest.copy_(add_product(part, weight, memory) if once else part + weight * memory)


def fetch_many(storage: Tensor, rooms: TensorList, many: TensorList) -> None:
    for x, room in zip(many.xs, rooms.xs, strict=True):
        x.copy_(room[:, : x.shape[1]])


def scale_many(factors: Tensor, many: TensorList) -> None:
    for factor, x in zip(factors.float(), many.xs, strict=True):
        x.copy_(torch.where(factor == 1, x, (x.float() * factor).to(x.dtype)))


def clear_many(flags: Tensor, many: TensorList) -> None:
    for flag, x in zip(flags, many.xs, strict=True):
        x.masked_fill_(~flag, 0.0)


def finite_many(flags: Tensor, many: TensorList) -> Tensor:
    return flags & torch.stack([x.isfinite().all() for x in many.xs])


def nonzero_many(flags: Tensor, many: TensorList) -> Tensor:
    return flags & torch.stack([x.any() for x in many.xs])


def narrow_many(flags: Tensor, rooms: TensorList, many: TensorList) -> Tensor:
    finite = []
    for t, (x, room) in enumerate(zip(many.xs, rooms.xs, strict=True)):
        mean = room[:, : x.shape[1]]
        x.copy_(mean)
        if many.rests is not None:
            many.rests[t].add_(mean - x)
        finite.append(x.isfinite().all())
    return flags & torch.stack(finite)


def round_many(message: Tensor, many: TensorList, rounded: TensorList, weight: float) -> Tensor:
    products = [x * weight for x in many.xs]
    _copy(products, rounded.xs)
    return torch.stack([product.isfinite().all() for product in products])


def widen_many(message: Tensor, rounded: TensorList, many: TensorList) -> Tensor:
    for x, wire in zip(many.xs, rounded.xs, strict=True):
        torch.add(wire.float(), 0.0, out=x)
    return torch.stack([x.isfinite().all() for x in many.xs])


def _copy(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.zero_()
        target[:, : source.shape[1]] = source
