"""Base class of the communicators that compress an average again."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from grace.communicators.base import Communicator
from grace.contract.compressor import Compressor
from grace.contract.conversation import label_parts
from grace.contract.facts import Facts
from grace.contract.learning_rate import Rate, choose_rate, lr_ratio, scale
from grace.contract.loan import succeed
from grace.contract.peer import Peer
from grace.errors import StateError
from grace.flags.finite import Flag
from grace.kernels.finite import all_finite


class ServerDebt(NamedTuple):
    """The error of a compressed average, kept by the owner of the chunk.

    debt: ``[c]`` float32, in units of the mean; zeros where the chunk reaches beyond the tensor. start: where the chunk
    begins in the flat tensor. world: W. shape: of the tensor. lr: the learning rate that it is in units of; 0 if unknown.
    """

    debt: Tensor
    start: int
    world: int
    shape: tuple[int, ...]
    lr: Rate

    @classmethod
    def read(cls, state: Any) -> ServerDebt | None:
        """From a state that was saved as a plain tuple.

        Raises:
            StateError: it is something else.
        """
        if state is None or isinstance(state, cls):
            return state
        if not isinstance(state, tuple) or len(state) != len(cls._fields) or not isinstance(state[0], Tensor):
            raise StateError(f"a server memory should be {', '.join(cls._fields)}, got {state!r}")
        return cls(*state)


@dataclass(frozen=True, slots=True)
class TwoHops(Communicator):
    """Base class of the communicators that compress an average again.

    The second rounding is the owner's debt. With a memory around the communicator it goes into the owner's rest. With
    ``server_memory`` the owner keeps it to itself, for the next average (server error feedback):
    ``a = mean + d;  send C(a);  d = a - C(a)``. Where ``peer.lr`` is given, d follows the learning rate.

    State: a :class:`ServerDebt`; None before the first exchange, which learns W from its peer, and where there is no server
    memory.
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
        """Facts about tensors like this one, where averages are compressed again: the compressor's, but without a bound
        unless it is exact.
        """
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
        held = ServerDebt.read(state)
        if held is None:
            return None
        debt, start, world, shape, _ = held
        out: Tensor = debt.new_zeros(math.prod(shape))
        chunk = out[start : start + debt.numel()]
        torch.mul(debt[: chunk.numel()], world, out=chunk)
        return out.view(shape)

    def _compress_again(self, average: Tensor, state: Any, peer: Peer) -> Tensor:
        """``average [1, c]`` plus what is owed -> wire; leaves the new debt in ``average``."""
        if not self.server_memory:
            return self._compress(average, peer, hop=1)
        if (held := ServerDebt.read(state)) is not None:
            if held.debt.numel() != average.numel():
                raise StateError(f"a server memory of {held.debt.numel()} numbers does not fit {average.numel()}")
            average[0].add_(scale(held.debt, 1.0 if peer.lr is None else lr_ratio(held.lr, peer.lr)))
        return self._compress(average, peer.lending(keep_rest=True), hop=1)

    def _keep_debt(self, debt: Tensor, rest: Tensor, peer: Peer) -> Flag:
        """Adds my second rounding ``debt [1, c]`` to my rest of this chunk, ``[c]``, unless the server memory keeps it:
        whether what is kept is finite. One worker's share of a mean is 1/W of it.
        """
        if self.server_memory:
            return all_finite(debt)
        return all_finite(rest.add_(debt[0], alpha=peer.world)) if peer.lent.keep_rest else True

    def _commit(self, debt: Tensor, start: int, x: Tensor, state: Any, finite: Flag, peer: Peer) -> ServerDebt | None:
        """The state after a step that left ``debt [1, c]``, of a chunk that begins at ``start``."""
        held = ServerDebt.read(state)
        if not self.server_memory or peer.lr == 0 or finite is False:  # with a learning rate of 0 nothing was applied
            return held
        debt = debt[0]
        debt[max(0, x.numel() - start) :] = 0  # padding
        if held is None:
            held = ServerDebt(torch.zeros_like(debt), start, peer.world, tuple(x.shape), 0.0)
        after = succeed(finite, debt, held.debt, peer.lent)
        return held._replace(debt=after, lr=choose_rate(finite, peer.lr or 0.0, held.lr))
