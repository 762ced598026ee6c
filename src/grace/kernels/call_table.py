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
        self._at, self._columns = slots, self._words.unbind(1)
        self._there: list[Any] = [None] * len(self._columns)
        self._threads = 0
        self._sizes = (
            native.address("words", self._words, torch.int64, self._words.numel()),
            *self._words.shape,
            native.address("results", self.results, torch.int64, len(calls)),
        )

    def put(self, slot: Slot, values: list[int] | int) -> None:
        """Sets the words of all calls in this place: one number for each, or one for all."""
        at = self._at.get(slot)
        if at is not None and self._there[at] != values:
            self._set(at, values)

    def aim(self, addresses: Sequence[Any]) -> None:
        """Sets the first words of all calls, each as :meth:`put` has them, or given by a tensor ``[s]`` float32 and by the
        numbers in it that they are the addresses of.
        """
        there = self._there
        for at, values in enumerate(addresses):
            if type(values) is tuple:
                flat, begins = values
                first = flat.data_ptr()
                if there[at] != first:
                    native.address("flat", flat, torch.float32, flat.numel())
                    self._set(at, [first + 4 * begin for begin in begins])
                    there[at] = first
            elif there[at] != values:
                self._set(at, values)

    def _set(self, at: int, values: list[int] | int) -> None:
        column = self._columns[at]
        if isinstance(values, int):
            column.fill_(values)
        elif len(values) == 1:
            column.fill_(values[0])
        else:
            column.copy_(torch.tensor(values, dtype=torch.int64, device=_CPU))
        self._there[at] = values

    def run(self, step: int = 0) -> Tensor:
        """Makes all calls, in their order, at this step of the streams: ``results``."""
        if STEP in self._at:
            self.put(STEP, step & 0xFFFFFFFF)
        if self._threads != (threads := torch.get_num_threads()):
            self._threads = threads
            self.put(THREADS, threads)
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
    functions = backends.backend().functions
    return functions is not None and functions.together
