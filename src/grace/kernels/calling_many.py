"""Calls native kernels for the tensors of a :class:`~grace.kernels.tensor_list.TensorList`: each list has a table of them.

Letters: T tensors of b rows of n_t numbers, each with a wire of w bytes; W senders; messages of s bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from grace.compute import native
from grace.kernels.call_table import MEMORY, REST, ROWS, STEP, THREADS, WIRE, CallTable, possible
from grace.kernels.calling import Layout
from grace.kernels.tensor_list import TensorList

if TYPE_CHECKING:
    from grace.random import Stream

Keys: TypeAlias = Callable[[int], tuple[Any, ...]]  # of each tensor
_NO_KEY = (0, 0, 0)  # in place of that of a stream


def key_of(stream: Stream) -> tuple[Any, ...]:
    """The arguments for the random numbers of this stream, at the step of the call."""
    return (*stream.native_key()[:2], STEP)


def keys_of(many: TensorList, step: int | None) -> Keys:
    """The arguments for the random numbers of each tensor; none are drawn without a step."""
    return lambda t: _NO_KEY if step is None else key_of(many.streams[t])


def encode_many(
    kernel: Callable[..., int],
    message: Tensor,
    many: TensorList,
    layout: Callable[[int], Layout],
    spec: Hashable,
    keys: Keys | None = None,
    step: int | None = None,
) -> Any:
    """Calls ``kernel(rows, memory, rest, b, n, B, wire, stride, *knobs, *key, threads)`` for each tensor, with its place in
    ``message [s]`` uint8: ``[T]`` bool, which sums of rows and memory were finite. ``layout`` is that of a row of n
    numbers; a kernel that takes no key has no ``keys``; what both follow from, beside the list, is ``spec``.

    Returns:
        NotImplemented if there is no such call: nothing was done.

    Raises:
        InputError: the message is something else, or too short.
        MemoryError: the kernel got none.
    """
    return encode_rows(kernel, message, many, lambda t: layout(many.sizes[t * many.rows]), spec, keys, step)


def encode_rows(
    kernel: Callable[..., int],
    message: Tensor,
    many: TensorList,
    layout_of: Callable[[int], Layout],
    spec: Hashable,
    keys: Keys | None = None,
    step: int | None = None,
) -> Any:
    """As :func:`encode_many`, with the layout of the rows of tensor t, which need not follow from their size alone."""
    if many.dtype is not torch.float32 or many.gap[0] or not possible():
        return NotImplemented
    key = (id(kernel), spec, step is None, many.memories is None, many.rests is None)
    return many.once(key, lambda: _Encoders(kernel, many, layout_of, keys)).run(message, many, step or 0)


def sum_many(
    kernel: Callable[..., int],
    rows: Tensor,
    many: TensorList,
    layout: Callable[[int], Layout],
    spec: Hashable,
    more: tuple[Any, ...],
    keys: Keys | None = None,
    step: int = 0,
) -> Any:
    """Calls ``kernel(wires, W, out, n, B, *knobs, *more, *key, threads)`` for each row of each tensor: ``[T]`` bool, which
    wires in ``rows [W, s]`` uint8 were legal. Arguments as those of :func:`encode_many`.

    Returns:
        NotImplemented if there is no such call: nothing was done.

    Raises:
        InputError: the messages are something else.
    """

    def call(r: int) -> tuple[Any, ...]:
        known = layout(many.sizes[r])
        key = () if keys is None else keys(r // many.rows)
        return (len(rows), ROWS, *known.sizes, *known.knobs, *more, *key)

    return sum_listed(kernel, rows, many, call, (spec, more), step=step)


def sum_listed(
    kernel: Callable[..., int],
    rows: Tensor,
    many: TensorList,
    call: Callable[[int], tuple[Any, ...]],
    spec: Hashable,
    *,
    lists: Callable[[], Sequence[int]] | None = None,
    step: int = 0,
) -> Any:
    """As :func:`sum_many`, calls ``kernel(wires, *call(r), threads)`` for row r of all rows, or if there are lists, which
    begin so many bytes into the wires of each row, ``kernel(wires, lists, *call(r), threads)``.
    """
    if many.dtype is not torch.float32 or many.gap[0] or not possible():
        return NotImplemented
    key = (id(kernel), spec, len(rows))
    return many.once(key, lambda: _Decoders(kernel, len(rows), many, call, lists and lists())).run(rows, many, step)


class _Encoders:
    def __init__(
        self, kernel: Callable[..., int], many: TensorList, layout_of: Callable[[int], Layout], keys: Keys | None
    ):
        b, calls = many.rows, []
        self._firsts = list(many.places[::b])
        memory, rest = None if many.memories is None else MEMORY, None if many.rests is None else REST
        self._end = 0
        for t, place in enumerate(self._firsts):
            known, key = layout_of(t), () if keys is None else keys(t)
            stride = many.places[t * b + 1] - place if b > 1 else known.width
            if list(many.places[t * b : (t + 1) * b]) != [place + r * stride for r in range(b)]:
                raise ValueError("the wires of a tensor's rows do not lie evenly")
            self._end = max(self._end, place + (b - 1) * stride + known.width)
            calls.append((ROWS, memory, rest, b, *known.sizes, WIRE, stride, *known.knobs, *key, THREADS))
        self._table, self._at = CallTable(kernel, calls), 0

    def run(self, message: Tensor, many: TensorList, step: int) -> Tensor:
        at = native.address("message", message, torch.uint8, max(self._end, message.numel()))
        if at != self._at:
            self._table.put(WIRE, [at + first for first in self._firsts])
            self._at = at
        xs, memories, rests = many.addresses
        self._table.put(ROWS, xs)
        if memories is not None:
            self._table.put(MEMORY, memories)
        if rests is not None:
            self._table.put(REST, rests)
        done = self._table.run(step)
        least = int(done.min())
        if least < 0:
            raise MemoryError("kernels: no memory to encode the tensors of a bucket")
        return many.all_set if least else done != 0


class _Decoders:
    def __init__(
        self,
        kernel: Callable[..., int],
        senders: int,
        many: TensorList,
        call: Callable[[int], tuple[Any, ...]],
        lists: Sequence[int] | None,
    ):
        places = torch.tensor(many.places, dtype=torch.int64, device="cpu")
        begins = [places] if lists is None else [places, places + torch.tensor(lists, dtype=torch.int64, device="cpu")]
        self._begins = torch.stack(begins, dim=1)[:, :, None]  # [T b, 1 or 2, 1]
        self._senders = torch.arange(senders, dtype=torch.int64, device="cpu")
        self._pointers = torch.empty(*self._begins.shape[:2], senders, dtype=torch.int64, device="cpu")
        first, step = self._pointers.data_ptr(), 8 * senders
        given = [[first + step * (r * len(begins) + i) for i in range(len(begins))] for r in range(len(many))]
        calls = [(*pointers, *call(r), THREADS) for r, pointers in enumerate(given)]
        self._table, self._at = CallTable(kernel, calls), (0, 0)
        self._end = max(many.places)

    def run(self, rows: Tensor, many: TensorList, step: int) -> Tensor:
        at = native.address_of_rows("rows", rows, self._end), rows.stride(0)
        if at != self._at:
            torch.add(self._begins + at[0], self._senders, alpha=at[1], out=self._pointers)
            self._at = at
        xs = many.addresses[0]
        if many.rows > 1:
            xs = [x + 4 * n * r for x, n in zip(xs, many.sizes[:: many.rows], strict=True) for r in range(many.rows)]
        self._table.put(ROWS, xs)
        faults = self._table.run(step)
        return many.all_of(faults == 0) if bool(faults.any()) else many.all_set
