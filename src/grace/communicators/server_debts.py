"""Server memories of a bucket: what the owner of chunks owes is added to all averages by one operation, and what follows it
chosen by another; on an accelerator by one launch each, without asking the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grace.communicators.two_hops import ServerDebt
from grace.contract.learning_rate import choose_rates, lr_ratio, stack_rates
from grace.contract.lent import Lent
from grace.flags.finite import flags
from grace.kernels.multi_tensor import weigh_many
from grace.kernels.tensor_list import TensorList, settle_many


class ServerDebts:
    """The errors of the compressed averages of a bucket, kept by their owners.

    Args:
        sizes: c of each average. starts: where it begins in its tensor. world: W.
        device: of all of them.
    """

    def __init__(self, sizes: Sequence[int], starts: Sequence[int], world: int, device: torch.device):
        self._starts, self._world, self._device = list(starts), world, device
        self._sums, self._news = (TensorList(sizes, (), (), device) for _ in range(2))
        self._held: list[ServerDebt | None] = []
        self._olds: list[Tensor] = []
        self._successors: list[Tensor] = []

    def point(self, averages: Sequence[Tensor], states: Sequence[Any], lent: Lent) -> bool:
        """From now on these are the averages, float32 ``[1, c]``, and the states, of all tensors or of none; False if kernels
        do not take them as they are.
        """
        self._held = [ServerDebt.read(state) for state in states]
        known = [debt for debt in self._held if debt is not None]
        if known and (len(known) < len(self._held) or not all(map(_fits, known, averages))):
            return False
        self._olds = [debt.debt for debt in known] or [torch.zeros_like(average[0]) for average in averages]
        self._successors = [lent.borrow_successor(old) for old in self._olds]
        before, after = self._olds, self._successors
        if self._sums.point(averages, before, averages) and self._news.point(after, before, after):
            return True
        for successor in self._successors:
            lent.give_back(successor)
        return False

    def add(self, lr: float | None) -> None:
        """Adds what is owed to the averages; where the learning rate ``lr`` is given, it follows that."""
        rates = [debt.lr for debt in self._held if debt is not None]
        if not rates:
            return
        weights = torch.ones(len(rates), dtype=torch.float32, device=self._device)
        if lr is not None:
            ratios = lr_ratio(stack_rates(rates, self._device), lr)
            weights = weights.double().mul_(ratios).float()
        weigh_many(weights, 1.0, self._sums, once=False)

    def commit(self, finite: Tensor, xs: Sequence[Tensor], lr: float | None, lent: Lent) -> list[Any]:
        """The states after a step that left new debts in the place of the averages, of xs of any shapes: those of tensors that
        were ``finite [T]``. Where the host knows that a first step was not, there is none.
        """
        if lr == 0:  # nothing was applied
            for successor in self._successors:
                lent.give_back(successor)
            return list(self._held)
        torch._foreach_copy_(self._successors, [average[0] for average in self._sums.xs])
        padded = [
            new[max(0, x.numel() - start) :] for new, x, start in zip(self._successors, xs, self._starts, strict=True)
        ]
        if padded := [numbers for numbers in padded if numbers.numel()]:
            torch._foreach_zero_(padded)
        settle_many(finite, self._news, drops=False)
        for old in self._olds:
            lent.give_back(old)
        firsts = zip(self._held, self._olds, self._starts, xs, strict=True)
        held = [
            ServerDebt(old, start, self._world, tuple(x.shape), 0.0) if debt is None else debt
            for debt, old, start, x in firsts
        ]
        rates = choose_rates(finite, lr or 0.0, [debt.lr for debt in held])
        both = zip(held, self._successors, rates, strict=True)
        news = [debt._replace(debt=after, lr=rate) for debt, after, rate in both]
        given = zip(news, self._held, flags(finite), strict=True)
        return [None if before is None and fine is False else new for new, before, fine in given]


def _fits(held: ServerDebt, average: Tensor) -> bool:
    debt = held.debt
    there = debt.get_device() == average.get_device() and debt.is_contiguous()
    return there and debt.shape == average[0].shape and debt.dtype is torch.float32
