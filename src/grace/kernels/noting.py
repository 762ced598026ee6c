"""Many calls of one kernel as one: the arguments of each are a row of a table, which is made once.

What a binding would call for a tensor is found out without any numbers: it is called with a :class:`Blank`, of which only the
shape is known. Whatever looks at more than that fails, and is then called for each tensor as ever.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import torch

from grace.compute import native
from grace.kernels.call_table import MEMORY, REST, ROWS, STEP, STRIDE, THREADS, WIRE, Slot, possible

__all__ = [
    "MEMORY", "REST", "ROWS", "STRIDE", "THREADS", "WIRE", "Blank", "BlankStream", "Call", "Key", "Keys", "Slot", "Table",
    "possible",
]  # fmt: skip

Keys: TypeAlias = Callable[[int, tuple[int, ...]], tuple[Any, Any, int]]


_CPU: Final = torch.device("cpu")


class Key(NamedTuple):
    """A word of the two of a tensor's key: of its stream, forked by these numbers one after the other."""

    forks: tuple[int, ...]
    half: int


class Call(NamedTuple):
    """A call of a kernel: arguments are numbers, numbers or arrays of ctypes, a :class:`Slot`, or a :class:`Key`. width: bytes
    of the wire that it writes; 0 if it writes none.
    """

    kernel: Callable[..., int]
    arguments: tuple[Any, ...]
    width: int

    @property
    def key(self) -> tuple[Any, ...]:
        """Two calls with one key are the same."""
        given = (id(x) if isinstance(x, ctypes.Array) else getattr(x, "value", x) for x in self.arguments)
        return (id(self.kernel), self.width, *given)


class Blank:
    """Rows ``[b, n]``, by default one, of which only the shape is known. Bindings note in ``call`` what they would call for
    them.
    """

    __slots__ = ("call", "shape", "wire")
    is_cpu = True
    device = _CPU

    def __init__(self, n: int, b: int = 1):
        self.shape = torch.Size((b, n))
        self.call: Call | None = None
        self.wire: Any = object()  # stands for what a call writes

    def note(self, call: Call) -> Any:
        """Notes the call, and returns ``wire``.

        Raises:
            TypeError: another one was noted.
        """
        if self.call is not None:
            raise TypeError("these rows are for one call")
        self.call = call
        return self.wire


class BlankStream:
    """A stream of random numbers of which a kernel may want the key, and a compressor the ``rank`` and the ``step``: then it
    has ``asked``.
    """

    __slots__ = ("_forks", "_step", "asked", "rank")

    def __init__(self, rank: int | None, step: int, forks: tuple[int, ...] = (), asked: list[bool] | None = None):
        self.rank, self._step, self._forks = rank, step, forks
        self.asked: list[bool] = [] if asked is None else asked

    @property
    def step(self) -> int:
        """The step at which the call is noted."""
        self.asked.append(True)
        return self._step

    def fork(self, salt: int) -> BlankStream:
        """As :meth:`grace.random.Stream.fork`."""
        return BlankStream(self.rank, self._step, (*self._forks, salt), self.asked)

    def native_key(self) -> tuple[Key, Key, Slot]:
        """As :meth:`grace.random.Stream.native_key`."""
        return Key(self._forks, 0), Key(self._forks, 1), STEP


def _no_keys(tensor: int, forks: tuple[int, ...]) -> tuple[Any, Any, int]:
    raise TypeError(f"call {tensor} has a key")


class Table:
    """The calls of one kernel for T tensors.

    Args:
        calls: one for each tensor. keys: the same for each ``forks`` of a :class:`Key`: the two words of each tensor; only
            where calls have keys.

    ``results``: what each returned, ``[T]`` int64.

    Raises:
        TypeError: several kernels, or arguments that differ in kind.
    """

    def __init__(self, calls: Sequence[Call], keys: Keys = _no_keys):
        self._calls, self._keys = list(calls), keys  # arrays of ctypes must stay
        self._number, self._types = native.c.number_of(calls[0].kernel)
        self._slots = _slots(calls[0])
        if any(call.kernel is not calls[0].kernel or _slots(call) != self._slots for call in calls):
            raise TypeError("calls of different kinds are not made as one")
        # [T, arguments]
        self._words = torch.tensor([self._row(i) for i in range(len(calls))], dtype=torch.int64, device=_CPU)
        self.results = torch.empty(len(calls), dtype=torch.int64, device=_CPU)
        self._sizes = (
            native.address("words", self._words, torch.int64, self._words.numel()),
            *self._words.shape,
            native.address("results", self.results, torch.int64, len(calls)),
        )

    def _row(self, i: int) -> list[int]:
        call = self._calls[i]
        given = [
            self._keys(i, word.forks)[word.half] if isinstance(word, Key) else 0 if isinstance(word, Slot) else word
            for word in call.arguments
        ]
        return [_word(value, kind) for value, kind in zip(given, self._types, strict=True)]

    def put(self, slot: Slot, values: list[int] | int) -> None:
        """The words of all calls in this place: one number for each, or one for all."""
        column = self._slots.get(slot)
        if column is not None:
            self._words[:, column] = torch.tensor(values, device=_CPU, dtype=torch.int64)

    def run(self, step: int) -> list[int]:
        """Makes all calls, in their order, at this step of the streams: what each returned."""
        self.put(STEP, step & 0xFFFFFFFF)
        self.put(THREADS, native.threads())
        native.c.call_many(self._number, *self._sizes)
        out: list[int] = self.results.tolist()
        return out


def _slots(call: Call) -> dict[Slot, int]:
    """The slots of a call, with their places."""
    return {word: at for at, word in enumerate(call.arguments) if isinstance(word, Slot)}


def _word(value: Any, kind: Any) -> int:
    """An argument of this type of ctypes, as the bytes of a word."""
    if isinstance(value, ctypes.Array):
        value = ctypes.addressof(value)
    number = kind(getattr(value, "value", value))
    return int.from_bytes(bytes(number), "little", signed=True)
