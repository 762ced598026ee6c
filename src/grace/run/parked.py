"""Memories of tensors that change their methods often: an error that is owed never goes into one gradient at once.

- **Parked**: the state of a method that is left waits, by tensor and method, and goes on when the method comes back. Nothing
  is paid: what is owed is still owed, only later.
- **Handed over**, when a method stays: what others have parked goes into its memory, if its units are the gradient's.
- **In instalments**, where it has none: ``e / m, e / (m - 1), ...`` of what is left is added to each of the next m gradients.

In all three the sum of what was applied and of what is owed is that of the gradients. At once instead, top-k alternating with
plain sums makes updates of more than four times the usual size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from grace.contract.method import Method

INSTALMENTS = 20  # gradients over which a debt is paid


class Parked:
    """States of methods that were left, by tensor and method."""

    def __init__(self) -> None:
        self._states: dict[str, dict[Method[Any], Any]] = {}

    def __bool__(self) -> bool:
        return any(self._states.values())

    def put(self, name: str, method: Method[Any], state: Any) -> None:
        """A tensor leaves a method."""
        self._states.setdefault(name, {})[method] = state

    def take(self, name: str, method: Method[Any]) -> tuple[Any] | None:
        """The state with which a tensor comes back to a method, in a tuple; None: it has none."""
        held = self._states.get(name, {})
        return (held.pop(method),) if method in held else None

    def take_all(self, name: str) -> list[tuple[Method[Any], Any]]:
        """All that a tensor has left."""
        return list(self._states.pop(name, {}).items())

    def names(self) -> set[str]:
        """The tensors that have left something."""
        return {name for name, held in self._states.items() if held}

    def all(self) -> Iterator[tuple[str, Method[Any], Any]]:
        """Each state, its tensor and its method."""
        for name, held in self._states.items():
            for method, state in held.items():
                yield name, method, state


def memory_of(method: Method[Any], state: Any) -> Tensor | None:
    """The tensor of a state to which a debt in units of the gradient can be added; None: there is none."""
    kinds = method.kinds(state)
    parts = list(zip(kinds, state, strict=True)) if isinstance(state, tuple) and isinstance(kinds, tuple) else []
    if any(kind == "own" and part is not None for kind, part in parts):
        return None  # what is one worker's own may say in what units the debt is
    owed = method.owed(state)
    return next((owed for kind, part in parts if kind == "debt" and part is owed), None)
