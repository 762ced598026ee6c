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
from grace.contract.peer import Peers
from grace.contract.workspace import Workspace
from grace.flags.finite import on_host
from grace.wire import Gathered


class BucketPlan:
    """Positions of the sealed wires of several tensors in a message.

    Args:
        kinds: for each tensor the bytes of its wire, and the dtype of the wire's numbers.
        device: of the message.

    size: s, bytes of the message. parts: whose they are. words: where the headers are, in int32, ``[T]`` int64.
    """

    def __init__(self, kinds: Sequence[tuple[int, torch.dtype]], device: torch.device | str = "cpu"):
        self._kinds = tuple(kinds)
        self._begins: list[int] = []
        at, padded = 0, []
        for width, _ in kinds:
            self._begins.append(at)
            at += wires.sealed_bytes(width)
            if width % wires.ALIGNMENT:
                padded.append(at // 4 - 1)
        self.size = at
        self.parts = Parts(tuple(range(len(kinds))), tuple(wires.sealed_bytes(width) for width, _ in kinds))
        device = torch.device(device)
        self.words = to_device(host_int64([begin // 4 for begin in self._begins]), device)
        self._padded = to_device(host_int64(padded), device) if padded else None
        self._gathered: tuple[tuple[int, ...], list[Gathered]] = ((), [])

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

    def addresses(self, message: Tensor) -> list[int]:
        """For each tensor where in memory its wire begins in ``message [s]`` uint8."""
        first = message.data_ptr() + wires.HEADER
        return [first + begin for begin in self._begins]

    def gathered(self, rows: Tensor) -> list[Gathered]:
        """For each tensor the wires of all senders in ``rows [W, s]`` uint8, contiguous."""
        where = (rows.data_ptr(), *rows.shape)
        if self._gathered[0] != where:
            answers = [Gathered(rows, begin, *kind) for begin, kind in zip(self._begins, self._kinds, strict=True)]
            self._gathered = (where, answers)
        return self._gathered[1]


def are_plain(xs: Sequence[Tensor], peers: Peers) -> bool:
    """True if tensors, of any shapes, can be encoded and decoded where they are."""
    lent = peers.like.lent
    return (
        lent.workspace is not None
        and not lent.keep_rest
        and lent.memory is None
        and on_host(xs[0].device)
        and all(x.dtype is torch.float32 and x.is_cpu and x.is_contiguous() and x.numel() > 0 for x in xs)
    )
