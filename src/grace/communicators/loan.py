"""What a communicator borrows of a worker for one exchange: x as numbers to work on, and room for the mean."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from grace.method import Exchanged
from grace.peer import Peer


class Loan:
    """x as contiguous float32 numbers to work on, and the way back to x's shape and dtype.

    ``work`` is x's own storage where that is possible, and after :meth:`compress`, where the rest is wanted, holds the rest.
    With a memory that is ``peer.rest``, and x's storage is free.
    """

    def __init__(self, x: Tensor, peer: Peer):
        self.x, self.peer = x, peer
        flat = x.reshape(-1)
        self.numbers = flat if flat.dtype == torch.float32 else flat.float()
        self.work = self.numbers if peer.rest is None else peer.rest.view(-1)
        wide = peer.keep_rest and x.dtype == torch.float64
        self._low = flat - self.work.double() if wide else None  # what float32 could not hold

    def room(self) -> Tensor:
        """``[n]`` for the mean, uninitialised; ``work`` stays as it is only where the rest is wanted."""
        spare = self.peer.spare
        if not self.peer.keep_rest or self.peer.rest is not None:
            return self.numbers
        if spare is not None and spare.dtype == torch.float32 and spare.is_contiguous():
            return spare.view(-1)
        return self.peer.scratch(self.work.numel(), self.x)

    def pad(self, size: int) -> None:
        """From now on work on scratch memory of ``size`` numbers: those there are, with the memory, then zeros."""
        n, memory = self.numbers.numel(), self.peer.memory
        padded = self.peer.scratch(size, self.x)
        if memory is None:
            padded[:n] = self.numbers
        else:
            torch.add(self.numbers, memory.view(-1), out=padded[:n])
        padded[n:] = 0
        self.numbers = self.work = padded
        self.peer = replace(self.peer, memory=None, rest=None, spare=None)

    def done(self, mean: Tensor) -> Exchanged[None]:
        """The result: ``mean``, and the rest if it is wanted."""
        n, kept = self.x.numel(), None
        if self.peer.keep_rest:
            rest = self.work[:n]
            kept = (rest if self._low is None else rest + self._low).view(self.x.shape)
        return Exchanged(mean[:n].view(self.x.shape).to(self.x.dtype), kept, None)

    def poisoned(self) -> Exchanged[None]:
        """The result of a step in which some rank saw an inf or NaN."""
        nan = self.numbers[: self.x.numel()].fill_(math.nan).view(self.x.shape).to(self.x.dtype)
        return Exchanged(nan, None, None, finite=False)
