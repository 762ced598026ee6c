"""Calls of kernels that are noted before there are numbers, so that many can be made as one.

What a binding would call for a tensor is found out without any numbers: it is called with a :class:`Blank`, of which only the
shape is known. Whatever looks at more than that fails, and is then called for each tensor as ever.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch

from grace.kernels.call_table import STEP, Slot

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
