"""What communicators share that compress an average again."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from grace.communicators.base import Communicator
from grace.compressor import Compressor
from grace.errors import StateError
from grace.facts import Facts
from grace.learning_rate import lr_ratio
from grace.method import label_parts
from grace.peer import Peer


@dataclass(frozen=True, slots=True)
class TwoHops(Communicator):
    """What communicators share that compress an average again.

    The second rounding is the owner's debt. With a memory around the communicator it goes into the owner's rest. With
    ``server_memory`` the owner keeps it to itself, for the next average (server error feedback):
    ``a = mean + d;  send C(a);  d = a - C(a)``. Where ``peer.lr`` is given, d follows the learning rate.

    State: None before the first exchange, which learns W from its peer, and where there is no server memory; then
    (d, where it begins in the tensor, W, shape, last learning rate). d is float32.
    """

    averages: ClassVar[bool] = True
    server_memory: bool = field(default=False, repr=False, kw_only=True)  # off, it does not show

    def __post_init__(self) -> None:
        Communicator.__post_init__(self)
        self._at(1)  # a compressor that no memory may wrap is refused here

    def _at(self, hop: int) -> Compressor:
        compressor = Communicator._at(self, hop)
        return compressor.with_memory() if hop and self.server_memory else compressor

    def facts(self, like: Tensor) -> Facts:
        """What is left of a compressor's claims where averages are compressed again: no bound, unless it is exact."""
        once = Communicator.facts(self, like)
        if once.variance == 0:
            return replace(once, payload=None)
        unbiased = once.unbiased and not self.server_memory
        return replace(once, unbiased=unbiased, contraction=None, variance=None, payload=None)

    def kinds(self, state: Any) -> Any:
        if state is None:
            return "own"
        _, *rest = state
        return ("chunk", *(label_parts(part, "own") for part in rest))

    def owed(self, state: Any) -> Tensor | None:
        """The server's debt, times W: one worker's share of a mean is 1/W of it."""
        if state is None:
            return None
        debt, start, world, shape, _ = state
        out: Tensor = debt.new_zeros(math.prod(shape))
        mine = out[start : start + debt.numel()]
        torch.mul(debt[: mine.numel()], world, out=mine)
        return out.view(shape)

    def _compress_again(self, average: Tensor, state: Any, peer: Peer) -> Tensor:
        """``average [1, c]`` plus what is owed -> wire; leaves the new debt in ``average``."""
        if not self.server_memory:
            return self._compress(average, peer, hop=1)
        if state is not None:
            debt, *_, last = state
            if debt.numel() != average.numel():
                raise StateError(f"a server memory of {debt.numel()} numbers does not fit {average.numel()}")
            average[0].add_(debt, alpha=1.0 if peer.lr is None else lr_ratio(last, peer.lr))
        return self._compress(average, peer.lending(keep_rest=True), hop=1)

    def _committed(self, debt: Tensor, start: int, x: Tensor, state: Any, peer: Peer) -> Any:
        """The state after a step that left ``debt [1, c]``, of a chunk that begins at ``start``."""
        if not self.server_memory or peer.lr == 0:  # with a learning rate of 0 nothing was applied
            return state
        debt = debt[0]
        debt[max(0, x.numel() - start) :] = 0  # padding
        kept = debt.clone() if state is None else state[0].copy_(debt)
        return (kept, start, peer.world, tuple(x.shape), peer.lr or 0.0)
