"""Velocities and debts of a bucket on an accelerator: three launches around an exchange, whatever the number of tensors.

The new debt ``v'`` is not written before it is exchanged: the method inside adds it up from what it is lent, as it adds the
memory to a gradient, and leaves in its place what it does not send.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from grace.compute.launching import READ
from grace.contract.method import Exchanged
from grace.contract.peer import Peer, Peers
from grace.contract.workspace import take_rooms
from grace.kernels.momentum import accelerate_many, forget_many
from grace.kernels.multi_tensor import narrow_many
from grace.kernels.tensor_list import TensorList, poison_many, settle_many
from grace.memories.many import put, stack_flags


@dataclass(frozen=True, slots=True)
class VelocityBucket:
    """Tensors of a bucket, and what was made of their memories, which hold u and v.

    many: the tensors, their memories ``[2, n]``, and the successors of these. rooms: what is exchanged in the tensors' place:
    themselves, or float32 numbers beside them. flat: memories and successors as they are settled. narrow: where means are
    rounded, the tensors and what remains of their debts. nesterov: as :class:`grace.MomentumCorrection` has it. successors:
    the new memories, ``[2, ...]`` each.
    """

    many: TensorList
    rooms: TensorList
    flat: TensorList
    narrow: TensorList | None
    nesterov: bool
    successors: Sequence[Tensor] = ()

    @staticmethod
    def of(xs: Sequence[Tensor], memories: Sequence[Tensor], peers: Peers, *, nesterov: bool) -> VelocityBucket | None:
        """The bucket of these tensors, of any shapes, with their memories ``[2, ...]``; None if kernels do not take them as
        they are, or while work is captured that knows them elsewhere.
        """
        lent, device = peers.like.lent, xs[0].device
        workspace = lent.workspace
        if workspace is None or lent.applied_as not in (None, xs[0].dtype) or not _are_plain(xs, memories):
            return None
        sizes, narrow = tuple(x.numel() for x in xs), xs[0].dtype is not torch.float32
        key = (VelocityBucket, device, xs[0].dtype, sizes, peers.names, nesterov)
        bucket: VelocityBucket | None = workspace.kept.get(key)
        if bucket is None:
            many, rooms, beside = (TensorList(sizes, (), (), device) for _ in range(3))
            flat = TensorList([2 * n for n in sizes], (), (), device)
            bucket = VelocityBucket(many, rooms, flat, beside if narrow else None, nesterov)
        successors = [lent.borrow_successor(memory) for memory in memories]
        rows, pairs, both = _in_rows(xs), _in_rows(successors, 2), _in_rows(successors)
        own = take_rooms(workspace, sizes, device) if narrow or nesterov else rows
        added = take_rooms(workspace, sizes, device) if nesterov else None
        there = bucket.many.point(rows, _in_rows(memories, 2), pairs) and bucket.rooms.point(own, added)
        there = there and bucket.flat.point(both, _in_rows(memories), both)
        if not there or not (bucket.narrow is None or bucket.narrow.point(rows, None, [pair[1:] for pair in pairs])):
            for successor in successors:
                lent.give_back(successor)
            return None
        workspace.kept[key] = bucket
        return replace(bucket, successors=successors)

    def accelerate(self, momentum: float, like: Peer, names: Sequence[str]) -> tuple[list[Tensor], Peers]:
        """The tensors that are exchanged in the place of the given ones, of their shapes; and their peers, like this one:
        each has the error that is to be added, and room for the next.
        """
        many, lent, shapes = self.many, self.rooms.memories, [successor.shape[1:] for successor in self.successors]
        accelerate_many(many.like, many, self.rooms, momentum, nesterov=self.nesterov)
        assert many.memories is not None
        added = [memory[1] for memory in many.memories] if lent is None else lent
        both = (self.rooms.xs, added)
        given, added = ([x.view(shape) for x, shape in zip(each, shapes, strict=True)] for each in both)
        return given, Peers(like, names, added, [successor[1] for successor in self.successors], given)

    def settle(self, outs: Sequence[Exchanged[Any]], masked: Sequence[bool]) -> Tensor:
        """Makes of each successor what the memory is after the step, whose results these are: of ``masked`` tensors without
        the velocity of what was sent. ``[T]`` bool: whether the means, which are then in :attr:`means`, are finite.
        """
        many = self.many
        for out, room, successor in zip(outs, self.rooms.xs, self.successors, strict=True):
            assert out.rest is not None, "what was not sent was to be kept"
            put(out.rest, successor[1])
            put(out.mean, room)
        finite = stack_flags(outs, many.device)
        if any(masked):
            marks = many.numbers(("masked", tuple(masked)), lambda: masked, torch.int32)
            forget_many(marks, many, nesterov=self.nesterov)
        if self.narrow is not None:
            finite = narrow_many(finite, self.rooms, self.narrow)
            poison_many(finite, self.narrow)
        settle_many(finite, self.flat)
        return finite

    @property
    def means(self) -> Sequence[Tensor]:
        """The means that all ranks apply, ``[1, n]`` each."""
        return self.rooms.xs if self.narrow is None else self.narrow.xs


def _are_plain(xs: Sequence[Tensor], memories: Sequence[Tensor]) -> bool:
    dtype = xs[0].dtype
    plain = all(x.dtype is dtype and x.is_contiguous() and x.numel() > 0 for x in xs)
    shapes = all(memory.shape == (2, *x.shape) for memory, x in zip(memories, xs, strict=True))
    return plain and shapes and dtype in READ and all(e.dtype is torch.float32 and e.is_contiguous() for e in memories)


def _in_rows(tensors: Sequence[Tensor], rows: int = 1) -> list[Tensor]:
    return [x.view(rows, -1) for x in tensors]
