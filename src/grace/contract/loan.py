"""Working tensors of an exchange, made of x and of the buffers provided: numbers to work on, room for the mean, and the way
back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from grace.compute import backends
from grace.contract.lent import Lent
from grace.contract.method import Exchanged
from grace.contract.peer import Peer
from grace.flags.finite import Flag, and_, choose_, fill_unless_
from grace.kernels.finite import all_finite

S = TypeVar("S")


def state_dtype(x: Tensor) -> torch.dtype:
    """The dtype of a memory like this gradient: float32, or float64 where the gradient is."""
    return torch.promote_types(x.dtype, torch.float32)


def narrow(mean: Tensor, dtype: torch.dtype, finite: Flag, rest: Tensor | None = None) -> tuple[Tensor, Flag]:
    """The mean, of any shape, in the dtype that it is applied in, and whether it was and is finite.

    ``rest``, of the mean's dtype, which may be wider, learns what the cast loses: it was computed, and is not applied.
    """
    if mean.dtype == dtype:
        return mean, finite
    cast = mean.to(dtype)
    if dtype.itemsize < mean.element_size():
        finite = and_(finite, all_finite(cast))  # a finite number may be too large for a narrow one
        fill_unless_(finite, cast, math.nan)
        if rest is not None:
            rest.add_(mean - cast)
    return cast, finite


def reads_narrow(x: Tensor) -> bool:
    """True if the kernels of x's device add a memory to a gradient of x's type, which is narrower than float32, as it is.
    ``x``: of any shape.
    """
    narrow = x.dtype in (torch.float16, torch.bfloat16) and x.is_contiguous()
    return narrow and backends.runs_triton(x.device)


def room_beside(numbers: Tensor, lent: Lent) -> Tensor:
    """Uninitialized room for the mean of contiguous float32 numbers, like them: their own, if the rest is not wanted."""
    if not lent.keep_rest:
        return numbers
    spare = lent.spare
    fits = spare is not None and spare.numel() == numbers.numel() and spare.dtype == numbers.dtype
    if spare is not None and fits and spare.is_contiguous():
        return spare.view(numbers.shape)
    return lent.scratch(tuple(numbers.shape), numbers)


def succeed(finite: Flag, new: Tensor, old: Tensor, lent: Lent) -> Tensor:
    """The next value of a tensor of the state, of any shape, in storage that stays valid: ``new``, copied and cast, if
    ``finite``, else ``old``.

    ``old`` keeps its numbers: another exchange of the bucket may fail, and then it is still the state.
    """
    if finite is False:
        return old
    out = choose_(finite, lent.borrow_successor(old).copy_(new), old)
    lent.give_back(old)
    return out


def succeed_all(finite: Sequence[bool], news: Sequence[Tensor], olds: Sequence[Tensor], lent: Lent) -> list[Tensor]:
    """As :func:`succeed` of several tensors, of any shapes, of which the host knows whether they are finite: one operation."""
    out = [lent.borrow_successor(old) if fine else old for old, fine in zip(olds, finite, strict=True)]
    fresh = [t for t, fine in enumerate(finite) if fine]
    if fresh:
        torch._foreach_copy_([out[t] for t in fresh], [news[t] for t in fresh])
    for t in fresh:
        lent.give_back(olds[t])
    return out


def rests_in_place(outs: Sequence[Exchanged[S]], xs: Sequence[Tensor]) -> list[Exchanged[S]]:
    """The results, whose rests, of any shapes, are the xs themselves where they are in their storage: then kernels for many
    tensors take them where they are.
    """
    for out, x in zip(outs, xs, strict=True):
        if out.rest is not None and out.rest.data_ptr() == x.data_ptr() and out.rest.dtype is x.dtype:
            out.rest = x
    return list(outs)


class Loan:
    """x as contiguous float32 numbers to work on, and the way back to x's shape and dtype.

    For authors of a :class:`grace.Method`. An exchange that uses it copies nothing where x is contiguous float32, and
    works for all shapes and dtypes all the same::

        loan = Loan(x, peer)
        ...                                # encode loan.numbers; leave the rest, if it is wanted, in loan.work
        answer = yield AllGather(wire)
        mean = loan.make_room()            # [n]
        ...                                # decode into it
        return loan.give_back(mean, state)

    Which storage holds what (peer.lent has the fields memory, rest, spare; g is the gradient, e the memory)::

                          | x             | lent.rest     | lent.memory   | lent.spare    | scratch
        ------------------+---------------+---------------+---------------+---------------+--------
        the rest is not wanted
          before          | g  (numbers)  |               |               |               |
          after           | mean          |               |               |               |
        keep_rest, nothing lent
          before          | g  (numbers)  |               |               |               |
          after           | rest  (work)  |               |               |               | mean
        keep_rest and spare
          before          | g  (numbers)  |               |               | anything      |
          after           | rest  (work)  |               |               | mean          |
        keep_rest, memory and rest        (only where Method.adds_memory)
          before          | g  (numbers)  | anything      | e             |               |
          after           | mean          | rest  (work)  | e             |               |

    In the last case p = g + e is what is sent, and the rest is p minus what was sent: the memory's successor. The memory
    itself is not written, so that it is whole if the exchange fails. If x is not contiguous or not float32, numbers is a
    copy of it and takes its place in the drawing. After :meth:`pad`, numbers and work are scratch memory.

    numbers: ``[n]`` float32: x, or a copy of it. With ``as_is``, and with a memory, x itself where kernels read its narrower
        type: whoever asks for that only encodes ``numbers``, and does not write them.
    work: ``[n]`` float32: where the rest is to be left; the storage of ``numbers``, unless there is a memory.
    """

    def __init__(self, x: Tensor, peer: Peer, *, as_is: bool = False):
        self.x, self.lent = x, peer.lent
        flat = x.reshape(-1)
        as_is = as_is and self.lent.memory is not None and reads_narrow(flat)
        self.numbers = flat if flat.dtype == torch.float32 or as_is else flat.float()
        self.work = self.numbers if self.lent.rest is None else self.lent.rest.view(-1)
        wide = self.lent.keep_rest and x.dtype == torch.float64
        self._low = flat - self.work.double() if wide else None  # what float32 could not hold
        self._padded = False

    @property
    def memory(self) -> Tensor | None:
        """``[n]`` float32 that is still to be added to :attr:`numbers`; None if there is none, or no longer."""
        return None if self._padded or self.lent.memory is None else self.lent.memory.view(-1)

    def pad(self, size: int) -> None:
        """From now on work on scratch memory of ``size`` numbers: those there are, with the memory, then zeros."""
        n = self.numbers.numel()
        padded = self.lent.scratch(size, self.x)
        if self.memory is None:
            padded[:n] = self.numbers
        else:
            torch.add(self.numbers, self.memory, out=padded[:n])
        padded[n:] = 0
        self.numbers = self.work = padded
        self._padded = True

    def make_room(self) -> Tensor:
        """Room for the mean, uninitialized, as large as :attr:`numbers`. Where the rest is wanted ``work`` stays as it is."""
        whole = self.numbers.dtype == torch.float32
        return room_beside(self.work, self.lent) if self.work is self.numbers or not whole else self.numbers

    def give_back(self, mean: Tensor, state: S, finite: Flag = True) -> Exchanged[S]:
        """The result: ``mean [n]`` or longer, and the rest if it is wanted. Unless ``finite``, the mean becomes NaN."""
        n, kept = self.x.numel(), None
        fill_unless_(finite, mean, math.nan)
        if self.lent.keep_rest:
            rest = self.work[:n]
            kept = rest if self._low is None else rest + self._low
        cast, finite = narrow(mean[:n], self.x.dtype, finite, kept)
        return Exchanged(cast.view(self.x.shape), None if kept is None else kept.view(self.x.shape), state, finite)

    def poison(self, state: S) -> Exchanged[S]:
        """The result of a step in which some rank saw an inf or NaN."""
        return Exchanged.poisoned(self.x, state)
