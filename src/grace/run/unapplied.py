"""Exchanges that are not applied yet: a worker keeps the states that its tensors had before, until the means have been
applied.

A state and its successor are two tensors anyway; here the first one stays until it is known what became of the means:

- **applied**: an optimizer has stepped with them. The successor counts.
- **dropped**: the gradient was cleared before any step. The state is what it was before.
- **waiting**: another pass is added to them before the step. The next exchange goes on from the successor, and if all of that
  is dropped, the state is what it was before the first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from torch import Tensor

from grace.contract.method import Method
from grace.run.debts import Debts

MethodState = tuple[Method[Any], Any]


class Unapplied:
    """A worker's states before exchanges that nobody has applied yet, by tensor."""

    __slots__ = ("_again", "_before", "_owed")

    def __init__(self) -> None:
        self._before: dict[str, MethodState] = {}
        self._owed: dict[str, tuple[Tensor, int | None]] = {}  # what a debt was before it was paid, and its instalments
        self._again: dict[str, int] = {}  # exchanges, where there was more than one

    def __bool__(self) -> bool:
        return bool(self._before)

    def __contains__(self, name: str) -> bool:
        return name in self._before

    def note(self, name: str, held: MethodState, owed: Debts) -> int:
        """A tensor is about to be exchanged, with this method and state. The number of its exchanges that wait, with this."""
        if name in self._before:
            self._again[name] = count = self._again.get(name, 1) + 1
            return count
        self._before[name] = held
        if name in owed.left:
            self._owed[name] = owed.left[name], owed.instalments.get(name)
        return 1

    def paid(self, names: Collection[str]) -> bool:
        """True if any of these had a debt, which their means may have paid."""
        return not self._owed.keys().isdisjoint(names)

    def drop(self, names: Collection[str], states: dict[str, MethodState], owed: Debts) -> int:
        """Puts back what these tensors had before, as far as they wait: how many exchanges of a tensor are undone, at most."""
        undone = 0
        for name in names:
            held = self._before.pop(name, None)
            if held is None:
                continue
            undone = max(undone, self._again.pop(name, 1))
            states[name] = held
            if name in self._owed:
                left, instalments = self._owed.pop(name)
                owed.left[name] = left
                if instalments is not None:
                    owed.instalments[name] = instalments
        return undone

    def keep(self, waiting: Collection[str]) -> None:
        """Only these still wait; the others' means were applied."""
        if not waiting:
            self.clear()
            return
        for name in self._before.keys() - waiting:
            self.apply(name)

    def apply(self, name: str) -> None:
        """The means of this tensor count as applied."""
        self._before.pop(name, None)
        self._owed.pop(name, None)
        self._again.pop(name, None)

    def clear(self) -> None:
        """All means were applied."""
        self._before, self._owed, self._again = {}, {}, {}

    def copy(self) -> Unapplied:
        """The same, of the same tensors: none is changed in place."""
        other = Unapplied()
        other._before, other._owed, other._again = dict(self._before), dict(self._owed), dict(self._again)
        return other

    def tensors(self) -> Iterator[Tensor]:
        """All that is kept of states."""
        for _, state in self._before.values():
            yield from tensors_of(state)


def tensors_of(state: Any) -> Iterator[Tensor]:
    """The tensors of a state, of any shapes."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, tuple):
        for part in state:
            yield from tensors_of(part)
