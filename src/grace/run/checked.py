"""A transport for debugging: before each collective, all ranks compare what they are about to ask for."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.collectives import AllGather, Collective, signature
from grace.errors import RoundMismatch
from grace.run.drive import Transport
from grace.run.simulate import mismatch

_WIDTH = 240


class Checked:
    """Wraps a transport. A rank that asks for another collective than the others is an error on every rank, with what
    each of them asked for, instead of a hang or a wrong sum. Costs one small all-gather per collective.
    """

    def __init__(self, transport: Transport, device: torch.device | str = "cpu"):
        self.transport, self.device = transport, device
        self.rank, self.world = transport.rank, transport.world
        self._rounds = 0

    def run(self, op: Collective) -> Tensor:
        """See :class:`grace.run.drive.Transport`.

        Raises:
            RoundMismatch: the ranks ask for different collectives.
        """
        self._rounds += 1
        text = f"collective {self._rounds}: {signature(op)}".encode()[:_WIDTH]
        mine = torch.tensor(list(text.ljust(_WIDTH)), dtype=torch.uint8, device=self.device)
        texts = [bytes(row.tolist()).decode().rstrip() for row in self.transport.run(AllGather(mine))]
        if len(set(texts)) > 1:
            raise RoundMismatch(mismatch(texts))
        return self.transport.run(op)
