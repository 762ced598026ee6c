"""Server memories of a bucket: what the owner of chunks owes is added to all averages by one operation, and what follows it
chosen by another; on an accelerator by one launch each, without asking the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grace.communicators.two_hops import ServerDebt
from grace.contract.learning_rate import choose_rate, lr_ratio, scale, stack_rates
from grace.contract.lent import Lent
from grace.contract.loan import succeed_all
from grace.contract.peer import Peer
from grace.kernels.multi_tensor import weigh_many
from grace.kernels.tensor_list import TensorList, settle_many


class ServerDebts:
    """The errors of the compressed averages of a bucket on an accelerator, kept by their owners.

    Args:
        sizes: c of each average. starts: where it begins in its tensor. world: W.
        device: of all of them.
    """

    def __init__(self, sizes: Sequence[int], starts: Sequence[int], world: int, device: torch.device):
        self._starts, self._world, self._device = list(starts), world, device
        self._sums, self._news = (TensorList(sizes, (), (), device) for _ in range(2))
        self._held: list[ServerDebt] | None = None
        self._olds: list[Tensor] = []
        self._successors: list[Tensor] = []

    def point(self, averages: Sequence[Tensor], states: Sequence[Any], lent: Lent) -> bool:
        """From now on these are the averages, float32 ``[1, c]``, and the states, of all tensors or of none; False if kernels
        do not take them as they are.
        """
        held = [ServerDebt.read(state) for state in states]
        known = [debt for debt in held if debt is not None]
        if known and (len(known) < len(held) or not all(map(_fits, known, averages))):
            return False
        self._held = known or None
        self._olds = [debt.debt for debt in known] or [torch.zeros_like(average[0]) for average in averages]
        self._successors = [lent.borrow_successor(old) for old in self._olds]
        before, after = ([debt[None] for debt in debts] for debts in (self._olds, self._successors))
        if self._sums.point(averages, before, averages) and self._news.point(after, before, after):
            return True
        for successor in self._successors:
            lent.give_back(successor)
        return False

    def add(self, lr: float | None) -> None:
        """Adds what is owed to the averages; where the learning rate ``lr`` is given, it follows that."""
        if self._held is None:
            return
        weights = torch.ones(len(self._held), dtype=torch.float32, device=self._device)
        if lr is not None:
            ratios = lr_ratio(stack_rates([debt.lr for debt in self._held], self._device), lr)
            weights = weights.double().mul_(ratios).float()
        weigh_many(weights, 1.0, self._sums, once=False)

    def commit(
        self, finite: Tensor, xs: Sequence[Tensor], states: Sequence[Any], lr: float | None, lent: Lent
    ) -> list[Any]:
        """The states after a step that left new debts in the place of the averages, of xs of any shapes: those of tensors that
        were ``finite [T]``.
        """
        if lr == 0:  # nothing was applied
            for successor in self._successors:
                lent.give_back(successor)
            return list(states)
        torch._foreach_copy_(self._successors, [average[0] for average in self._sums.xs])
        padded = [
            new[max(0, x.numel() - start) :] for new, x, start in zip(self._successors, xs, self._starts, strict=True)
        ]
        if padded := [numbers for numbers in padded if numbers.numel()]:
            torch._foreach_zero_(padded)
        settle_many(finite, self._news, drops=False)
        held = self._held or [
            ServerDebt(old, start, self._world, tuple(x.shape), 0.0)
            for old, start, x in zip(self._olds, self._starts, xs, strict=True)
        ]
        for old in self._olds:
            lent.give_back(old)
        lasts = stack_rates([debt.lr for debt in held], self._device)
        rates = torch.as_tensor(choose_rate(finite, lr or 0.0, lasts), dtype=torch.float64, device=self._device).unbind(
            0
        )
        both = zip(held, self._successors, rates, strict=True)
        return [debt._replace(debt=after, lr=rate) for debt, after, rate in both]


class HostDebts:
    """The errors of the compressed averages of a bucket, in the processor's memory.

    Args:
        states: of all tensors. lr: the learning rate that they follow; None: they follow none.
    """

    def __init__(self, states: Sequence[Any], lr: float | None):
        self._held, self._lr = [ServerDebt.read(state) for state in states], lr

    def fit(self, sizes: Sequence[int]) -> bool:
        """True if they can be added to averages of so many numbers as they are."""
        return all(
            held is None or (held.debt.shape == (c,) and held.debt.dtype is torch.float32 and held.debt.is_cpu)
            for held, c in zip(self._held, sizes, strict=True)
        )

    def add(self, averages: Sequence[Tensor]) -> None:
        """Adds what is owed to the averages, ``[c]`` each."""
        owing = [(held, average) for held, average in zip(self._held, averages, strict=True) if held is not None]
        if owing:
            ratios = [1.0 if self._lr is None else lr_ratio(held.lr, self._lr) for held, _ in owing]
            debts = [scale(held.debt, ratio) for (held, _), ratio in zip(owing, ratios, strict=True)]
            torch._foreach_add_([average for _, average in owing], debts)

    def commit(self, finite: Sequence[bool], xs: Sequence[Tensor], debts: Sequence[Tensor], peer: Peer) -> list[Any]:
        """The states after a step that left these ``debts``, ``[c]`` each, of this rank's chunks of xs of any shapes: those of
        tensors that were ``finite``.
        """
        if self._lr == 0:  # nothing was applied
            return list(self._held)
        tails = [debt[max(0, x.numel() - peer.rank * len(debt)) :] for x, debt in zip(xs, debts, strict=True)]
        if tails := [tail for tail in tails if len(tail)]:  # padding
            torch._foreach_zero_(tails)
        olds = [
            torch.zeros_like(new) if held is None else held.debt for held, new in zip(self._held, debts, strict=True)
        ]
        afters, lr = succeed_all(finite, debts, olds, peer.lent), self._lr or 0.0
        news = []
        for held, after, fine, x in zip(self._held, afters, finite, xs, strict=True):
            if fine and held is None:
                held = ServerDebt(after, peer.rank * len(after), peer.world, tuple(x.shape), lr)
            news.append(held._replace(debt=after, lr=lr) if fine and held is not None else held)
        return news


def _fits(held: ServerDebt, average: Tensor) -> bool:
    debt = held.debt
    return debt.shape == average[0].shape and debt.dtype is torch.float32 and debt.is_contiguous()
