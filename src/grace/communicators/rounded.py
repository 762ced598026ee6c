"""Tensors of a bucket that the network sums as 16-bit floats, by as many launches or calls as one of them takes.

Nothing here asks the host. Letters: T tensors of n_t numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grace import wire as wires
from grace.collectives import AllReduce, Exchange, Parts
from grace.contract.method import Exchanged
from grace.contract.peer import Peers
from grace.contract.together import can_go_together
from grace.contract.workspace import Workspace
from grace.kernels.multi_tensor import round_many, widen_many
from grace.kernels.tensor_list import TensorList, poison_many


@dataclass(frozen=True, slots=True)
class RoundedBucket:
    """many: the tensors, float32 ``[1, n_t]``. rounded: their numbers in the message ``[s]``, in its dtype. parts: whose they
    are; where there are several, each begins at a multiple of 4 bytes, with 0 before it, if the message is ``padded``.
    """

    many: TensorList
    rounded: TensorList
    parts: Parts
    padded: bool
    message: Tensor

    @staticmethod
    def of(dtype: torch.dtype, xs: Sequence[Tensor], peers: Peers, workspace: Workspace) -> RoundedBucket | None:
        """The bucket of these tensors, of any shapes, which travel in this dtype; None if kernels for many cannot take
        them.
        """
        if xs[0].dtype is not torch.float32 or peers.keep_rests or not can_go_together(xs, peers, anywhere=True):
            return None
        device, sizes = xs[0].device, tuple(x.numel() for x in xs)
        key = (RoundedBucket, dtype, device, sizes, peers.names)
        bucket: RoundedBucket | None = workspace.kept.get(key)
        widths = tuple(n + n % 2 for n in sizes) if len(xs) > 1 else sizes
        message = workspace.take((sum(widths),), dtype, device)
        if bucket is None:
            many, rounded = (TensorList(sizes, (), (), device) for _ in range(2))
            bucket = RoundedBucket(many, rounded, Parts(tuple(range(len(xs))), widths), widths != sizes, message)
        if not bucket.many.point(xs):
            return None
        if bucket.message.data_ptr() != message.data_ptr() or not bucket.rounded.xs:
            places = [room[None, :n] for room, n in zip(message.split_with_sizes(widths), sizes, strict=True)]
            if not bucket.rounded.point(places):
                return None
            bucket = replace(bucket, message=message)
        workspace.kept[key] = bucket
        return bucket


def exchange_rounded(bucket: RoundedBucket, xs: Sequence[Tensor], peers: Peers) -> Exchange[list[Exchanged[None]]]:
    """The results of all tensors, float32 of any shapes, whose means are written over them. What some rank has seen an inf or
    NaN in travels as NaN.
    """
    many, rounded, message = bucket.many, bucket.rounded, bucket.message
    if bucket.padded:
        message.zero_()
    finite = round_many(message, many, rounded, 1 / peers.like.world)
    poison_many(finite, rounded)
    answer = yield AllReduce(message, "sum", donate=True, parts=bucket.parts)
    wires.check_shape("sum", answer, message.shape)
    if answer.data_ptr() != message.data_ptr():
        message.copy_(answer)
    finite = widen_many(message, rounded, many)
    poison_many(finite, many)
    return [Exchanged(x, None, None, flag) for x, flag in zip(xs, finite.unbind(0), strict=True)]
