"""Many calls of one kernel as one: the arguments of each are a row of a table, which is made once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from grace.compute import backends, native


class Slot:
    """A word of the table that differs from step to step."""

    __slots__ = ()


ROWS, MEMORY, REST, WIRE, STEP, THREADS = (Slot() for _ in range(6))
_CPU: Final = torch.device("cpu")


class CallTable:
    """The calls of one kernel for T tensors.

    Args:
        kernel: of ``native.c``.
        calls: the arguments of each: numbers, numbers or arrays of ctypes, None for no address, or a :class:`Slot`.

    ``results``: what each returned, ``[T]`` int64.

    Raises:
        TypeError: calls that differ in their slots.
    """

    def __init__(self, kernel: Callable[..., int], calls: Sequence[tuple[Any, ...]]):
        self._calls = list(calls)  # arrays of ctypes must stay
        self._number, self._types = native.c.number_of(kernel)
        slots = _slots(calls[0])
        if any(_slots(call) != slots for call in calls):
            raise TypeError("calls of different kinds are not made as one")
        words = [[_word(value, kind) for value, kind in zip(call, self._types, strict=True)] for call in calls]
        self._words = torch.tensor(words, dtype=torch.int64, device=_CPU)  # [T, arguments]
        self.results = torch.empty(len(calls), dtype=torch.int64, device=_CPU)
        self._columns = {slot: self._words[:, at] for slot, at in slots.items()}
        self._there: dict[Slot, list[int] | int] = {}
        self._sizes = (
            native.address("words", self._words, torch.int64, self._words.numel()),
            *self._words.shape,
            native.address("results", self.results, torch.int64, len(calls)),
        )

    def put(self, slot: Slot, values: list[int] | int) -> None:
        """Sets the words of all calls in this place: one number for each, or one for all."""
        column = self._columns.get(slot)
        if column is None or self._there.get(slot) == values:
            return
        if isinstance(values, int):
            column.fill_(values)
        else:
            column.copy_(torch.tensor(values, dtype=torch.int64, device=_CPU))
        self._there[slot] = values

    def run(self, step: int = 0) -> Tensor:
        """Makes all calls, in their order, at this step of the streams: ``results``."""
        self.put(STEP, step & 0xFFFFFFFF)
        self.put(THREADS, native.threads())
        native.c.call_many(self._number, *self._sizes)
        return self.results


def _slots(call: tuple[Any, ...]) -> dict[Slot, int]:
    """The slots of a call, with their places."""
    return {word: at for at, word in enumerate(call) if isinstance(word, Slot)}


def _word(value: Any, kind: Any) -> int:
    """An argument of this type of ctypes, as the bytes of a word."""
    if isinstance(value, Slot):
        return 0
    if isinstance(value, ctypes.Array):
        value = ctypes.addressof(value)
    number = kind(getattr(value, "value", value))
    return int.from_bytes(bytes(number), "little", signed=True)


def possible() -> bool:
    """True if kernels can be called many at a time: not by a library that was built before they could."""
    return backends.backend().functions is not None and native.has("call_many")
