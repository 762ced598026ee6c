"""A compressor's calls of kernels for the tensors of a bucket, found out once and then made all together.

A compressor that does nothing but call one kernel is *bound*: it is asked with :class:`~grace.kernels.noting.Blank` rows and a
:class:`~grace.kernels.noting.BlankStream`, which tell no more than n, the rank and the step, so the call cannot depend on
anything else. All other compressors are asked for each tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

from torch import Tensor

from grace.contract.compressor import Compressor
from grace.kernels.call_table import MEMORY, REST, ROWS, STRIDE, WIRE, CallTable, possible
from grace.kernels.noting import Blank, BlankStream, Call, Key
from grace.random import Stream
from grace.wire import Gathered

Streams: TypeAlias = Callable[[int], Stream]  # of each tensor
Keys: TypeAlias = Callable[[int, tuple[int, ...]], tuple[Any, Any, int]]  # the words of a tensor's stream, forked so
_TABLES = 4  # that an encoder keeps, for calls that depend on the step


class BoundEncoder:
    """Encoding of T tensors by a compressor.

    Args:
        compressor: the compressor.
        sizes: n of each tensor. widths: bytes of each wire ``[1, w]``.
        memory: whether there are memories to add, and rests to keep.
        streams: the random numbers of each tensor. rank: theirs; None if they are shared.
        rows: how many rows of n numbers each tensor has. again: whether it compresses what is finite, as
            :meth:`grace.Compressor.compress_` does, and keeps rests if there is a memory, which nothing is added of.

    ``bound``: whether it is, as far as is known.
    """

    def __init__(
        self,
        compressor: Compressor,
        sizes: Sequence[int],
        widths: Sequence[int],
        memory: bool,
        streams: Streams,
        rank: int | None,
        *,
        rows: int = 1,
        again: bool = False,
    ):
        self._rows, self._again = rows, again
        self._compressor, self._memory, self._rank = compressor, memory, rank
        self._sizes, self._widths = sizes, dict(zip(sizes, widths, strict=True))
        self._keys = _keys(streams)
        self._tables: dict[tuple[Any, ...], CallTable] = {}
        self._only: CallTable | None = None  # the table of all steps
        self.bound = possible()

    def ready(self, step: int) -> bool:
        """True if the calls of this step are known."""
        return self.bound and self._table(step) is not None

    def run(
        self, xs: list[int], places: list[int], step: int, memories: list[int], rests: list[int], *, stride: int = 0
    ) -> list[bool] | None:
        """Encodes xs plus the memories (0: none) into wires, whose rows are ``stride`` bytes apart: whether each was finite.
        All are given by their addresses. None: nothing was done, and the compressor is to be asked for each tensor.
        """
        table = self._table(step) if self.bound else None
        if table is None:
            return None
        table.put(ROWS, xs)
        table.put(WIRE, places)
        table.put(STRIDE, stride)
        if self._memory:
            table.put(MEMORY, memories)
            table.put(REST, rests)
        out = table.run(step).tolist()
        return None if min(out) < 0 else [done == 1 for done in out]  # no memory: it will be said for the tensor

    def _table(self, step: int) -> CallTable | None:
        if self._only is not None:
            return self._only
        calls, asked = {}, False
        for n, width in self._widths.items():
            rows, rng = Blank(n, self._rows), BlankStream(self._rank, step)
            call = self._note(rows, rng)
            asked = asked or bool(rng.asked)
            if call is None or call.width != width:
                self.bound = False
                return None
            calls[n] = call
        key = tuple([call.key for call in calls.values()])
        table = self._tables.get(key)
        if table is None:
            if len(self._tables) == _TABLES:  # another one at each step: no gain
                self.bound = False
                return None
            table = make_table([calls[n] for n in self._sizes], self._keys)
            if table is None:
                self.bound = False
                return None
            self._tables[key] = table
        self._only = None if asked else table
        return table

    def _note(self, rows: Blank, rng: BlankStream) -> Call | None:
        """The one call of which the compressor returns what it gives; None if it does anything else."""
        lent = [cast(Tensor, Blank(rows.shape[1], self._rows)) if self._memory else None for _ in range(2)]
        try:
            if self._again:
                same = self._compressor.compress_(cast(Tensor, rows), cast(Stream, rng), self._memory)
                return rows.call if same is rows.wire else None
            wire, finite = self._compressor.encode_(cast(Tensor, rows), cast(Stream, rng), *lent)
        except Exception:  # whatever it wanted, blank rows did not have it
            return None
        return rows.call if wire is rows.wire and finite is True else None


def bind_decoder(
    compressor: Compressor, sizes: Sequence[int], received: Sequence[Gathered], scale: float, streams: Streams
) -> CallTable | None:
    """The calls that set rows ``[1, n]`` to scale times the sum of the wires received; each returns 0, or why it refused.
    None: the compressor is to be asked for each tensor.
    """
    if compressor.overflows or not possible():
        return None
    calls = []
    for n, wires in zip(sizes, received, strict=True):
        out, rng = Blank(n), BlankStream(None, 0)
        try:
            compressor.aggregate_(wires, cast(Tensor, out), scale, cast(Stream, rng))
        except Exception:  # as above
            return None
        if out.call is None or rng.asked:
            return None
        calls.append(out.call)
    return make_table(calls, _keys(streams))


def make_table(calls: Sequence[Call], keys: Keys) -> CallTable | None:
    """The calls as one; None if they are of different kinds."""
    kernel = calls[0].kernel
    if any(call.kernel is not kernel for call in calls):
        return None
    rows = [
        tuple([keys(i, word.forks)[word.half] if isinstance(word, Key) else word for word in call.arguments])
        for i, call in enumerate(calls)
    ]
    try:
        return CallTable(kernel, rows)
    except TypeError:
        return None


def _keys(streams: Streams) -> Keys:
    """The key of each tensor's stream, forked so."""

    def key(i: int, forks: tuple[int, ...]) -> tuple[Any, Any, int]:
        stream = streams(i)
        for salt in forks:
            stream = stream.fork(salt)
        return stream.native_key()

    return key
