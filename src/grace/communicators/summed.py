"""Tensors of a bucket whose wires the network sums, by as many launches or calls as one of them takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grace import wire as wires
from grace.collectives import AllReduce, Exchange, Parts
from grace.communicators.many import Prepared, finish
from grace.compute.host import host_int64, to_device
from grace.contract.method import Exchanged
from grace.contract.peer import Peers


class SumPlan:
    """Positions of the wires of several tensors, float32 ``[k_t]``, in one message ``[s]``.

    Args:
        widths: bytes of each. device: of the message.

    parts: whose they are. owners: int64 ``[s]``, whose each number is.
    """

    def __init__(self, widths: Sequence[int], device: torch.device):
        counts = [width // 4 for width in widths]
        self.parts = Parts(tuple(range(len(counts))), tuple(counts))
        self.size = sum(counts)
        self.wires = [4 * sum(counts[:t]) for t in range(len(counts))]
        owners = torch.repeat_interleave(torch.arange(len(counts), dtype=torch.int64, device="cpu"), host_int64(counts))
        self.owners = to_device(owners, device)


def exchange_sums(bucket: Prepared[SumPlan], xs: Sequence[Tensor], peers: Peers) -> Exchange[list[Exchanged[Any]]]:
    """The results of all tensors, of any shapes, whose means are written over them."""
    many, plan = bucket.many, bucket.plan
    message = bucket.workspace.take((plan.size,), torch.float32, many.device)
    finite = bucket.compressor.encode_many_(message, many, bucket.stream)  # [T]
    message.masked_fill_(~finite[plan.owners], math.nan)
    answer = yield AllReduce(message, "mean", donate=True, parts=plan.parts)
    wires.check_shape("sum", answer, message.shape)
    finite = bucket.compressor.put_many_(answer.contiguous(), many, bucket.stream, bucket.means or many)
    return finish(finite, many, bucket.means, xs, peers)
