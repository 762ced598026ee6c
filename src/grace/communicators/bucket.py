"""The wires of a bucket in one message: where each lies, computed once.

A *bucket* is the tensors that come to the network together; those of one method travel as one message ``[s]``, their sealed
wires one after the other. Everything here follows from their widths and from where the message is in memory, which stays.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from grace import wire as wires
from grace.collectives import Parts
from grace.compute.host import host_int64, to_device
from grace.contract.workspace import Workspace


class BucketPlan:
    """Positions of the sealed wires of several tensors in a message.

    Args:
        widths: for each tensor the bytes of its wire.
        device: of the message.

    size: s, bytes of the message. parts: whose they are. words: where the headers are, in int32, ``[T]`` int64.
    """

    def __init__(self, widths: Sequence[int], device: torch.device):
        self._widths = tuple(widths)
        self._begins: list[int] = []
        at, padded = 0, []
        for width in widths:
            self._begins.append(at)
            at += wires.sealed_bytes(width)
            if width % wires.ALIGNMENT:
                padded.append(at // 4 - 1)
        self.size = at
        self.parts = Parts(tuple(range(len(widths))), tuple(map(wires.sealed_bytes, widths)))
        self.words = to_device(host_int64([begin // 4 for begin in self._begins]), device)
        self._padded = to_device(host_int64(padded), device) if padded else None

    def take(self, workspace: Workspace, device: torch.device) -> Tensor:
        """An uninitialized message ``[s]`` uint8, but for its padding, which is zero."""
        message = workspace.take(self.size, torch.uint8, device)
        self.clear_padding(message)
        return message

    def clear_padding(self, messages: Tensor) -> None:
        """Sets what is behind the wires of one or several messages ``[..., s]`` uint8 to zero."""
        if self._padded is not None:
            messages.view(torch.int32).index_fill_(-1, self._padded, 0)

    @property
    def wires(self) -> list[int]:
        """For each tensor the byte of the message where its wire begins."""
        return [begin + wires.HEADER for begin in self._begins]

    def wires_of(self, rows: Tensor, t: int) -> list[Tensor]:
        """The wires ``[1, w]`` uint8 of tensor t in ``rows [W, s]`` uint8, of all senders."""
        begin = self._begins[t] + wires.HEADER
        return list(rows[:, None, begin : begin + self._widths[t]])
