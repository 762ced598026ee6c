"""Errors owed to gradients from outside their memories: by methods that were replaced, by steps in which a worker was late."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Debts:
    """By tensor, what is to be added to its next gradients: to the next one, or in instalments.

    Attributes:
        left: what is owed, of each tensor's shape, in units of the gradient.
        instalments: over how many gradients that is still spread, where that is not one.
    """

    __slots__ = ("instalments", "left")

    def __init__(self, left: Mapping[str, Tensor] | None = None, instalments: Mapping[str, int] | None = None):
        self.left, self.instalments = dict(left or {}), dict(instalments or {})

    def __bool__(self) -> bool:
        return bool(self.left)

    def __contains__(self, name: str) -> bool:
        return name in self.left

    def copy(self) -> Debts:
        """The same debts, of the same tensors: none is ever changed in place."""
        return Debts(self.left, self.instalments)

    def add(self, name: str, x: Tensor | None, dtype: torch.dtype | None = None) -> None:
        """``x``, of the tensor's shape, is owed too; None: nothing. dtype: in which, if nothing was; as a rule ``x``'s."""
        if x is not None:
            self.left[name] = self.left[name] + x if name in self.left else x.to(dtype or x.dtype, copy=True)

    def join(self, name: str, x: Tensor) -> None:
        """Adds to the gradient ``x``, of any shape, in place, what goes with it: all, or the instalment that is due."""
        if name in self.left:
            x.add_(self.left[name], alpha=1 / self.instalments.get(name, 1))

    def pay(self, name: str) -> None:
        """Forgets the error that was added to a gradient, which has been exchanged."""
        others = self.instalments.pop(name, 1) - 1
        if not others:
            self.left.pop(name, None)
        elif name in self.left:
            self.left[name] = self.left[name] * (others / (others + 1))
            self.instalments[name] = others
