"""Operations on several tensors on the host: tables of calls of native kernels, or torch's operations on lists."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grace.compute import native
from grace.flags.finite import on_host
from grace.kernels.call_table import possible
from grace.kernels.finite.many import Finiteness, Sums
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.native import fill


def clear_many(flags: Tensor, many: TensorList) -> Any:
    return fill(flags, many, 0.0)


def pad_many(storage: Tensor, many: TensorList, rooms: TensorList) -> Any:
    if not _are_plain(many):
        return NotImplemented
    each = range(1 if many.memories is None else 2)
    gaps = [(n, m - n) for n, m in zip(many.sizes, rooms.sizes, strict=True)]
    tails = [(t, n, gap) for t, (n, gap) in enumerate(gaps) if gap]
    sizes = [*many.sizes * len(each), *[gap for _, _, gap in tails] * len(each)]
    zeros = many.numbers(("zeros", rooms.sizes), lambda: [0.0] * max(gap for _, gap in gaps), torch.float32)
    sources, targets, ends = list[int](), list[int](), list[int]()
    for part in each:
        given, there = many.addresses[part], rooms.addresses[part]
        assert given is not None
        assert there is not None
        sources += given
        targets += there
        ends += [there[t] + 4 * n for t, n, _ in tails]
    blank = native.address("zeros", zeros, torch.float32, zeros.numel())
    _copy(many, sizes, [*sources, *[blank] * len(ends)], [*targets, *ends])
    return None


def fetch_many(storage: Tensor, rooms: TensorList, many: TensorList) -> Any:
    if not _are_plain(many):
        return NotImplemented
    _copy(many, many.sizes, rooms.addresses[0], many.addresses[0])
    return None


def sum_many(like: Tensor, many: TensorList) -> Any:
    xs, memories, rests = many.addresses
    if memories is None or rests is None or not _are_plain(many):
        return NotImplemented
    many.once(("sums", id(native.c.sum_finite)), lambda: Sums(many.sizes, memory=True)).run(xs, memories, rests)
    return None


def weigh_many(weights: Tensor, share: float, many: TensorList, *, once: bool = True) -> Any:
    if once or share != 1 or many.rests is not many.xs or many.memories is None or not on_host(many.device):
        return NotImplemented
    memories = tuple(many.memories)
    if bool((weights != 1).any()):
        memories = torch._foreach_mul(memories, weights.tolist())
    torch._foreach_add_(list(many.xs), memories)
    return None


def finite_many(flags: Tensor, many: TensorList) -> Any:
    if not _are_plain(many):
        return NotImplemented
    finite = many.once(id(native.c.finite), lambda: Finiteness(many.sizes)).run(many.addresses[0])
    return flags & _flags(finite) if 0 in finite else flags


def round_many(message: Tensor, many: TensorList, rounded: TensorList, weight: float) -> Any:
    """Rounds to 16 bits in ``message [s]``; or copies to where float32 stays float32, beside others in it."""
    if weight == 1.0 and _are_plain(many) and _are_plain(rounded):
        copies = many.once("copies", lambda: Sums(many.sizes, memory=False))
        finite = copies.run(many.addresses[0], 0, rounded.addresses[0])
        return _flags(finite) if 0 in finite else many.all_set
    if not on_host(many.device) or rounded.dtype is torch.float32:
        return NotImplemented
    products = torch._foreach_mul(list(many.xs), weight)
    torch._foreach_copy_(list(rounded.xs), products)
    if math.isfinite(message.sum(dtype=torch.float32).item()):  # one pass; what overflows is looked at again
        return many.all_set
    return torch.stack([product.isfinite().all() for product in products])


def widen_many(message: Tensor, rounded: TensorList, many: TensorList) -> Any:
    """Widens what 16 bits in ``message [s]`` say; or copies float32, beside others in it."""
    if _are_plain(many) and _are_plain(rounded):
        zeros = many.once("zeros", lambda: torch.zeros(max(many.sizes), dtype=torch.float32, device="cpu"))
        sums = many.once("sums with 0", lambda: Sums(many.sizes, memory=True))  # -0 becomes 0
        nothing = native.address("zeros", zeros, torch.float32, zeros.numel())
        finite = sums.run(rounded.addresses[0], nothing, many.addresses[0])
        return _flags(finite) if 0 in finite else many.all_set
    if not on_host(many.device) or rounded.dtype is torch.float32:
        return NotImplemented
    message.add_(0.0)
    torch._foreach_copy_(list(many.xs), list(rounded.xs))
    if math.isfinite(message.sum(dtype=torch.float32).item()):  # one pass; what overflows is looked at again
        return many.all_set
    return torch.stack([x.isfinite().all() for x in many.xs])


def _are_plain(many: TensorList) -> bool:
    """True if tables of calls can be made for these tensors."""
    return many.dtype is torch.float32 and not many.gap[0] and many.rows == 1 and possible()


def _flags(finite: list[int]) -> Tensor:
    return torch.tensor(finite, dtype=torch.int64, device="cpu") != 0


def _copy(many: TensorList, sizes: Sequence[int], sources: list[int], targets: list[int]) -> None:
    """Copies so many numbers from each of these addresses to another one."""
    key = ("copies", id(native.c.sum_finite), tuple(sizes))
    many.once(key, lambda: Sums(sizes, memory=False)).run(sources, 0, targets)
