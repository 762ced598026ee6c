"""Transport of a worker alone, which answers its own collectives."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from grace.collectives import AllGather, AllReduce, Collective, Permute, ReduceScatter
from grace.errors import TransportError
from grace.transports.refusing import refuse_unfit


class Alone:
    """A transport between one rank and itself; the same script then runs as a job of one."""

    name = "alone"
    why = ""
    rank, world = 0, 1

    def __init__(self) -> None:
        self._closed = False

    def split(self, ranks: Sequence[int]) -> Alone:
        """A transport between some of its ranks."""
        return Alone()

    def run(self, op: Collective) -> Tensor:
        """See :class:`grace.transports.base.Transport`."""
        if self._closed:
            raise TransportError("this transport is closed")
        refuse_unfit(op, self.rank, self.world)
        if isinstance(op, AllReduce):
            return op.buf.contiguous() if op.donate else op.buf.clone()
        if isinstance(op, AllGather):
            return op.buf[None].clone()
        if isinstance(op, ReduceScatter):
            return op.buf[0].clone()
        if isinstance(op, Permute) and not op.pairs:
            return torch.zeros_like(op.buf)
        return op.buf.clone()

    def all_gather_text(self, text: str, *, seconds: float) -> list[str]:
        """See :class:`grace.transports.base.Transport`."""
        if self._closed:
            raise TransportError("this transport is closed")
        return [text]

    def close(self, error: BaseException | None = None) -> None:
        """See :class:`grace.transports.base.Transport`."""
        self._closed = True
