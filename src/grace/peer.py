"""Who a worker is in an exchange, and what it is lent for it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grace.random import Stream
from grace.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Peer:
    """Who I am in this exchange.

    rank, world: r and W. step: the global step. name: the tensor's name. seed: the run's seed.
    keep_rest: whether somebody wants what was not sent.
    spare: storage like x (same shape, float32, contiguous) that the method may overwrite, for instance with the mean.
    workspace: scratch memory that is free again after the exchange; None allocates.
    lr: the learning rate that this step's mean will be applied with, the same on all ranks, where memories should follow
        it; None where they need not, or where nobody said.
    steps_per_epoch: for schedules that count epochs; None if nobody said.
    memory, rest: only for methods that take them (:attr:`Method.adds_memory`), like x, float32, contiguous: what is to be
        added to x first, and storage for what was not sent, which becomes :attr:`Exchanged.rest`. x is then spare.
    """

    rank: int
    world: int
    step: int = 0
    name: str = ""
    seed: int = 0
    keep_rest: bool = False
    spare: Tensor | None = None
    workspace: Workspace | None = None
    lr: float | None = None
    steps_per_epoch: int | None = None
    memory: Tensor | None = None
    rest: Tensor | None = None

    def private(self, method: str) -> Stream:
        """Randomness that differs between ranks."""
        return Stream(self.seed, method, self.name, self.rank, self.step)

    def shared(self, method: str) -> Stream:
        """Randomness that is the same on all ranks."""
        return Stream(self.seed, method, self.name, None, self.step)

    def scratch(self, shape: int | tuple[int, ...], like: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """An uninitialised tensor on ``like``'s device, valid until the exchange has ended."""
        if self.workspace is None:
            return torch.empty(shape, dtype=dtype, device=like.device)
        return self.workspace.take(shape, dtype, like.device)
