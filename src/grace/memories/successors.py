"""Tensors of a bucket on an accelerator, of which something else is exchanged that follows from what is kept of them.

What is computed number by number is computed by torch for all tensors at once (``torch._foreach_*``): it has the bits of the
operation on one of them. What depends on whether a tensor was finite is done by kernels, which ask nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from grace.compute.launching import READ
from grace.contract.lent import Lent
from grace.contract.method import Exchanged
from grace.contract.peer import Peers
from grace.contract.workspace import take_rooms
from grace.kernels.multi_tensor import narrow_many
from grace.kernels.tensor_list import TensorList, poison_many, settle_many
from grace.memories.many import put, stack_flags


@dataclass(frozen=True, slots=True)
class SuccessorBucket:
    """Tensors of a bucket, what is kept of each, and its successor.

    many: the tensors. rooms: what is exchanged in their place, float32 ``[1, n]``: themselves, or numbers beside them. flat:
    all that is kept, and all successors. narrow: whether means are rounded on their way from the rooms to the tensors. kept,
    successors: for each part of a state, those of all tensors, float32 ``[1, n]``. lent: by whom they are.
    """

    many: TensorList
    rooms: TensorList
    flat: TensorList
    narrow: bool
    lent: Lent
    kept: Sequence[list[Tensor]] = ()
    successors: Sequence[list[Tensor]] = ()

    @staticmethod
    def of(xs: Sequence[Tensor], states: Sequence[Sequence[Tensor]], peers: Peers) -> SuccessorBucket | None:
        """The bucket of these tensors, of any shapes, with so many parts of their states, like them; None if kernels do not
        take them as they are, or while work is captured that knows them elsewhere.
        """
        lent, device, dtype = peers.like.lent, xs[0].device, xs[0].dtype
        workspace = lent.workspace
        if workspace is None or lent.keep_rest or lent.applied_as not in (None, dtype) or not _are_plain(xs, states):
            return None
        sizes, narrow = tuple(x.numel() for x in xs), dtype is not torch.float32
        key = (SuccessorBucket, device, dtype, sizes, peers.names, len(states))
        bucket: SuccessorBucket | None = workspace.kept.get(key)
        if bucket is None:
            many, rooms = (TensorList(sizes, (), (), device) for _ in range(2))
            bucket = SuccessorBucket(many, rooms, TensorList(sizes * len(states), (), (), device), narrow, lent)
        borrowed = [[lent.borrow_successor(part) for part in parts] for parts in states]
        kept, successors = ([_in_rows(parts) for parts in each] for each in (states, borrowed))
        rows, before, after = _in_rows(xs), list(chain(*kept)), list(chain(*successors))
        there = bucket.many.point(rows) and bucket.flat.point(after, before, after)
        if not (there and bucket.rooms.point(take_rooms(workspace, sizes, device) if narrow else rows)):
            for part in chain(*borrowed):
                lent.give_back(part)
            return None
        workspace.kept[key] = bucket
        if narrow:
            torch._foreach_copy_(list(bucket.rooms.xs), rows)
        return replace(bucket, lent=lent, kept=kept, successors=successors)

    @property
    def numbers(self) -> list[Tensor]:
        """The tensors as float32, ``[1, n]``, until something else is :meth:`given <give>`."""
        return list(self.rooms.xs)

    def give(self, numbers: Sequence[Tensor], xs: Sequence[Tensor]) -> list[Tensor]:
        """These ``[1, n]`` in the rooms, which are to be exchanged, of the tensors' shapes."""
        torch._foreach_copy_(list(self.rooms.xs), list(numbers))
        return [room.view(x.shape) for room, x in zip(self.rooms.xs, xs, strict=True)]

    def take(self, outs: Sequence[Exchanged[Any]]) -> Tensor:
        """The means come to the rooms: ``[T]`` bool, which are finite."""
        for out, room in zip(outs, self.rooms.xs, strict=True):
            put(out.mean, room)
        return stack_flags(outs, self.many.device)

    def round(self, finite: Tensor) -> Tensor:
        """The tensors become what is in the rooms, if they are narrower: which are ``finite [T]``, and NaN where not."""
        if self.narrow:
            finite = narrow_many(finite, self.rooms, self.many)
            poison_many(finite, self.many)
        return finite

    def means(self, xs: Sequence[Tensor]) -> list[Tensor]:
        """The means that all ranks apply, of the shapes of xs."""
        return [mean.view(x.shape) for mean, x in zip(self.many.xs, xs, strict=True)]

    def settle(self, finite: Tensor, states: Sequence[Sequence[Tensor]], *, drops: bool = True) -> list[list[Tensor]]:
        """The next states, of the same shapes: see :func:`grace.kernels.tensor_list.settle_many`; ``finite [T]``."""
        settle_many(finite.repeat(len(states)), self.flat, drops=drops)
        for part in chain(*states):
            self.lent.give_back(part)
        both = zip(self.successors, states, strict=True)
        return [[new.view(old.shape) for new, old in zip(after, parts, strict=True)] for after, parts in both]


def average_(successors: list[Tensor], old: list[Tensor], weight: float, xs: list[Tensor], share: float) -> None:
    """``weight old + share x`` for tensors of any shapes, alike: ``torch.mul(old, weight).add_(x, alpha=share)``."""
    torch._foreach_copy_(successors, old)
    torch._foreach_mul_(successors, weight)
    torch._foreach_add_(successors, xs, alpha=share)


def _in_rows(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [x.view(1, -1) for x in tensors]


def _are_plain(xs: Sequence[Tensor], states: Sequence[Sequence[Tensor]]) -> bool:
    dtype = xs[0].dtype
    plain = all(x.dtype is dtype and x.is_contiguous() and x.numel() > 0 for x in xs)
    return plain and dtype in READ and all(_fit(xs, parts) for parts in states)


def _fit(xs: Sequence[Tensor], parts: Sequence[Tensor]) -> bool:
    both = zip(parts, xs, strict=True)
    return all(part.shape == x.shape and part.dtype is torch.float32 and part.is_contiguous() for part, x in both)
