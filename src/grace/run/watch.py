"""Watches whether what a memory holds back drives training apart: then both it and the gradients keep growing.

Error feedback applies late what it has held back, and an optimizer's momentum multiplies that. Where the learning rate is too
large for the delay, each correction overshoots, gradients grow, and what is held back grows with them. A run that learns has
neither for long: its gradients settle, and a memory that still fills has gradients that do not grow.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

import torch
from torch import Tensor

WINDOW = 10  # steps whose median counts as one
FIRST = 10  # windows before anything is said: in the first steps everything grows
GROWTH = 1.25  # of the gradients and of the memory, since half of the run
RISE = 2.3  # of the gradients, over the first window's
DIP = 0.8  # below this share of the first window's they belong to a network that has begun to learn, and grow for that reason
IN_A_ROW = 3  # windows that say so

TENSORS = 2  # that are looked at: the largest with a memory
NUMBERS = 8192  # of a tensor, about, evenly spread: two looks at it take some microseconds
WHAT_TO_DO = (
    "what memories hold back and the gradients keep growing: this training drifts apart. Error feedback applies late what "
    "it holds back, which the optimizer's momentum multiplies. Use a lower learning rate, a larger ratio or rank, less "
    "momentum, or start=N, which compresses from step N on"
)

UNSURE = (
    "what memories hold back and the gradients keep growing: this training drifts apart. Gradients that are dropped may be "
    "why: memories count them as applied here, since no torch.optim.Optimizer is known that holds the parameters. Give "
    "optimizer=; or exchange no gradient that you drop: requires_grad_(False) or no_sync() for another network's pass, "
    "torch.autograd.grad for an attack"
)


class DebtWatch:
    """A worker's watch over the norms of what it owes and of its gradients, in its two largest tensors with a memory.

    ``diverging`` becomes True, for good, where both have grown by a quarter since half of the run, and the gradients are 2.3
    times the first ones and never fell far below them, three times in a row. Norms are medians of ten steps.
    """

    def __init__(self) -> None:
        self.diverging = False
        self._sizes: dict[str, int] = {}  # of tensors with a memory, until it is known which are the largest
        self._watched: set[str] | None = None
        self._squares = [0.0, 0.0]  # of this step: owed, gradient
        self._looks: list[tuple[float, float]] = []
        self._debts: list[float] = []
        self._gradients: list[float] = []
        self._grown = 0  # windows in a row that say so

    def wants(self, name: str) -> bool:
        """True if :meth:`see` would do anything with this tensor."""
        return self._watched is None or name in self._watched

    def see(self, name: str, debt: Tensor, gradient: Tensor) -> None:
        """Takes note of a tensor that is about to be exchanged, of any shape, on the CPU."""
        if self._watched is None:
            self._sizes[name] = gradient.numel()
        elif name in self._watched:
            self._squares[0] += _square(debt)
            self._squares[1] += _square(gradient)

    def end_step(self) -> None:
        """The step has ended."""
        if self._watched is None:
            if self._sizes:
                self._watched = set(sorted(self._sizes, key=lambda name: -self._sizes[name])[:TENSORS])
            return
        debt, gradient = self._squares
        if gradient > 0 and math.isfinite(debt + gradient):
            self.add(math.sqrt(debt), math.sqrt(gradient))
        self._squares = [0.0, 0.0]

    def forget_step(self, dropped: Iterable[str]) -> None:
        """The last step counts for nothing if the means of a tensor that is looked at were dropped."""
        if self._looks and self._watched and not self._watched.isdisjoint(dropped):
            self._looks.pop()

    def add(self, debt: float, gradient: float) -> None:
        """Adds a look: the norms of what is owed and of the gradient."""
        self._looks.append((debt, gradient))
        if len(self._looks) < WINDOW:
            return
        debts, gradients = zip(*self._looks, strict=True)
        self._debts.append(statistics.median(debts))
        self._gradients.append(statistics.median(gradients))
        self._looks = []
        self._grown = self._grown + 1 if self._grows() else 0
        self.diverging = self.diverging or self._grown >= IN_A_ROW

    def _grows(self) -> bool:
        now = len(self._debts) - 1
        if now + 1 < FIRST:
            return False
        half = (now + 1) // 2
        owed, size = self._debts[now], self._gradients[now]
        return (
            owed >= GROWTH * self._debts[half]
            and size >= GROWTH * self._gradients[half]
            and size >= RISE * self._gradients[0]
            and min(self._gradients) >= DIP * self._gradients[0]
        )


def _square(x: Tensor) -> float:
    """The square of the norm of an even sample of x."""
    stride = max(1, x.numel() // NUMBERS)
    sample = x.view(-1)[::stride] if x.is_contiguous() else x
    return float(torch.linalg.vector_norm(sample, dtype=torch.promote_types(x.dtype, torch.float32))) ** 2
