"""Several tensors for one launch: a table of where they are, made when they move and not at every step.

The tensors of a bucket that one method exchanges, as rows ``[1, n]``: a kernel for many of them runs one program for each tile
of any of them, and finds in the table where the tensor begins. Families have operations for many tensors where that pays.
A tensor may also be b rows ``[b, n]``, each with a wire of its own.

Letters: T tensors; tensor t has b rows of n_t numbers; a tile is what one program handles, and never crosses rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

import torch
from torch import Tensor

from grace.compute import backends
from grace.compute.dispatch import operation
from grace.compute.host import host_int64, to_device
from grace.compute.launching import Marks
from grace.flags.capturing import capturing

if TYPE_CHECKING:
    from grace.random import Stream

__all__ = ["Rooms", "TensorList", "agree_many", "poison_many", "settle_many"]

R = TypeVar("R")
# Tables that are kept, of 64 bytes a row: gradients may move, and memories wander. Of N buckets of equal shapes each has N + 1
# (memories, successors) in turn; of 17 buckets of unequal numbers of two shapes, 217.
SIDES = 512
ALL_TOLD = "all told"  # the key of what agree_many says where all is as it should be
_LAUNCHES = 64  # whose marks are made at once
_EVEN = 16  # bytes: where all tensors begin at multiples of this, kernels read more at a time


class Rooms(tuple[Tensor, ...]):
    """Tensors of any shapes that stay where they are: whoever knows these rooms need not look where they are."""

    __slots__ = ()


class TensorList:
    """The tensors of a bucket on one device.

    Args:
        sizes: n_t, at least 1.
        places: for each row the byte of the message where its wire begins; may be empty, if there is none.
        streams: for each tensor the random numbers that are its own; may be empty.
        device: of the tensors.
        rows: b.

    xs, memories, rests: ``[b, n_t]`` each, contiguous, float32; xs may also be float16 or bfloat16, all of them, where they
        are read; memories and rests may be missing. They may be given in any shape. sizes, places: of each of the T b rows,
        those of a tensor side by side.
    dtype: of the xs. addresses: of the xs, memories and rests, None where there are none. gap:
        numbers from a row of an x to the next, and bytes of a number, where the rows are not contiguous.
    table: int64 on the device, for each row the addresses of the tensor, memory and rest (0 where there is none), the place
        of its wire, n_t, the two words of the stream's key, and the first number of the row in its tensor. even: whether all
        rows begin at multiples of 16 bytes. whole: whether they begin at multiples of 4 numbers. in_place: whether some rest
        takes the place of its x or memory.
    work: the same tensors, places and streams, but float32 xs that an encoder which asks for it may overwrite: they may be
        the rests, or where there are none the xs. Its own work is it itself. None: nobody has asked.
    """

    COLUMNS = 8  # of the table

    def __init__(
        self,
        sizes: Sequence[int],
        places: Sequence[int],
        streams: Sequence[Stream],
        device: torch.device,
        rows: int = 1,
    ):
        self.rows, self.device, self.streams = rows, device, tuple(streams)
        self.sizes = tuple(n for n in sizes for _ in range(rows))
        self.places = tuple(places) or (0,) * len(self.sizes)
        self._whole_sizes = tuple(sizes)
        self._starts = [row * n for n in sizes for row in range(rows)]
        self.whole = not any(start % 4 for start in self._starts)
        self.xs: Sequence[Tensor] = ()
        self.dtype = torch.float32
        self.memories: Sequence[Tensor] | None = None
        self.rests: Sequence[Tensor] | None = None
        self.work: TensorList | None = None
        self.addresses: tuple[list[int], list[int] | None, list[int] | None] = ([], None, None)
        self.gap = (0, 0)
        self._pointed: Sequence[Sequence[Tensor] | None] = ()
        self._there: _Table | None = None  # the table for these addresses, once it has been asked for
        self._tables: dict[tuple[int, ...], _Table] = {}
        self._made: dict[Hashable, Any] = {}
        self._clean = torch.empty(0, dtype=torch.bool, device="cpu")  # marks for coming launches
        self._given = 0  # how many of them have been handed out

    def __len__(self) -> int:
        """T b, how many rows there are."""
        return len(self.sizes)

    @property
    def like(self) -> Tensor:
        """A number of the dtype of xs, by which kernels know it."""
        dtype = self.dtype
        return self.once(("like", dtype), lambda: torch.zeros(1, dtype=dtype, device=self.device))

    @property
    def all_set(self) -> Tensor:
        """``[T]`` bool: all tensors."""
        tensors = len(self._whole_sizes)
        return self.once("all set", lambda: torch.ones(tensors, dtype=torch.bool, device=self.device))

    def all_are_told(self, told: Tensor) -> bool:
        """True if the host knows that nothing in ``told [3, T]`` bool, of :func:`agree_many`, is not set."""
        return told is self._made.get(ALL_TOLD)

    def marks(self, each: int = 1) -> Marks:
        """So many marks for each row, row after row: none is handed out twice. They are made for many launches at once, but
        while work is captured, since replays have to set them again.
        """
        count = each * len(self)
        if capturing():
            return Marks(self.table, count)
        begin = self._given
        if begin + count > self._clean.numel():
            begin, room = 0, _LAUNCHES * _aligned(count)
            self._clean = torch.ones(room, dtype=torch.bool, device=self.device)
        self._given = begin + _aligned(count)
        return Marks(self._clean, count, self._clean[begin : begin + count])

    def all_of(self, marks: Tensor) -> Tensor:
        """``[T]`` bool: which tensors have no mark, of ``[T b m]`` bool, m for each row, which are set where there is none."""
        tensors = len(self._whole_sizes)
        return marks if marks.shape[0] == tensors else marks.view(tensors, -1).all(dim=1)

    @property
    def table(self) -> Tensor:
        return self._look_up().words

    @property
    def even(self) -> bool:
        return self._look_up().even

    @property
    def in_place(self) -> bool:
        return self._look_up().in_place

    def point(
        self,
        xs: Sequence[Tensor],
        memories: Sequence[Tensor] | None = None,
        rests: Sequence[Tensor] | None = None,
        *,
        stride: int = 0,
    ) -> bool:
        """From now on these are the tensors, of any shapes. Their addresses go to the device unless they
        have been there; False if they would have to while work is captured, and then nothing has changed.
        ``stride``: numbers from a row of an x ``[b, n_t]`` to the next, if these are not contiguous; they are only read then.
        """
        given = xs, memories, rests
        if not stride and _are_the_same(given, self._pointed):
            return True
        parts = [x.data_ptr() for x in xs], _addresses(memories), _addresses(rests)
        gap = (stride, xs[0].element_size()) if stride else (0, 0)
        if self._on_device:
            there = self._tables.get(_key(parts, gap))
            if there is None and capturing():
                return False
            self._there = there or self._make_table(parts, gap)
        elif parts != self.addresses and capturing():
            return False
        else:
            self._there = None  # native kernels have no use for it
        self.addresses, self.gap = parts, gap
        if xs:
            self.dtype = xs[0].dtype
        self.xs = _InRows(xs, self._whole_sizes)
        self.memories = None if memories is None else _InRows(memories, self._whole_sizes)
        self.rests = self.xs if rests is xs else None if rests is None else _InRows(rests, self._whole_sizes)
        self._pointed = given
        return True

    @property
    def _on_device(self) -> bool:
        """True if the kernels of the device read the table."""
        return self.device.type != "cpu" or backends.runs_triton(self.device)

    def _look_up(self) -> _Table:
        if self._there is None:
            known = self._tables.get(_key(self.addresses, self.gap))
            self._there = known or self._make_table(self.addresses, self.gap)
        return self._there

    def _make_table(self, parts: Sequence[list[int] | None], gap: tuple[int, int]) -> _Table:
        xs, memories, rests = parts
        (stride, size), none = gap, [0] * len(self._whole_sizes)
        addresses = [[at for at in part or none for _ in range(self.rows)] for part in parts]
        if stride:  # a row begins at the number of the contiguous tensor where it would begin
            gaps = [row * (stride - n) * size for n in self._whole_sizes for row in range(self.rows)]
            addresses[0] = [at + more for at, more in zip(addresses[0], gaps, strict=True)]
        keys = [stream.key() for stream in self.streams for _ in range(self.rows)] or [(0, 0)] * len(self)
        columns = (*addresses, self.places, self.sizes, *zip(*keys, strict=True), self._starts)
        lines = host_int64([list(line) for line in zip(*columns, strict=True)])
        even = not any(at % _EVEN for column in (*addresses, self._starts) for at in column)
        given = zip(xs or none, memories or none, rests or none, strict=True)
        in_place = rests is not None and any(rest in (x, memory) for x, memory, rest in given)
        if len(self._tables) >= SIDES:
            self._tables.clear()
        table = self._tables[_key(parts, gap)] = _Table(to_device(lines, self.device), even, in_place)
        return table

    def lend(self, xs: Sequence[Tensor]) -> bool:
        """From now on these are the xs of :attr:`work`, float32 ``[b, n_t]``; see :meth:`point`."""
        if self.work is None:
            self.work = TensorList(self._whole_sizes, self.places, self.streams, self.device, self.rows)
            self.work.work = self.work
        return self.work.point(xs)

    def shared_stream(self, t: int, salt: int) -> Stream:
        """The numbers of tensor t that all ranks share, forked: see :meth:`grace.random.Stream.fork`."""
        return replace(self.streams[t], rank=None, salt=0).fork(salt)

    def own_stream(self, t: int, salt: int) -> Stream:
        """The numbers of tensor t's own stream, forked."""
        return self.streams[t].fork(salt)

    def keys(self, salt: int, *, own: bool = False) -> Tensor:
        """int64 ``[T b, 2]``: for each row the words of the key of :meth:`shared_stream`, or with ``own`` of
        :meth:`own_stream`.
        """
        stream = self.own_stream if own else self.shared_stream

        def make() -> list[int]:
            tensors = (t for t in range(len(self.streams)) for _ in range(self.rows))
            return [word for t in tensors for word in stream(t, salt).key()]

        return self.numbers(("keys", salt, own), make, torch.int64).view(-1, 2)

    def once(self, key: Hashable, make: Callable[[], R]) -> R:
        """The result of ``make``, which follows from the sizes, the places and the key alone: computed once."""
        if key not in self._made:
            self._made[key] = make()
        made: R = self._made[key]
        return made

    def numbers(self, key: Hashable, make: Callable[[], Sequence[float]], dtype: torch.dtype) -> Tensor:
        """Numbers on the device, copied there once; see :meth:`once`."""
        return self.once(key, lambda: to_device(torch.tensor(make(), dtype=dtype, device="cpu"), self.device))

    def tiles(self, per: int, *, block: int = 1, pieces: int = 1) -> Tensor:
        """int32 ``[programs, 2]``: for each program its row, of all rows, and which of that one's tiles it handles; a tile is
        ``per`` pieces, and a block of ``block`` numbers has so many of them.
        """
        return self.pairs(
            ("tiles", per, block, pieces), lambda: [-(-count * pieces // per) for count in self.counts(block)]
        )

    def pairs(self, key: Hashable, count: Callable[[], Sequence[int]]) -> Tensor:
        """As :meth:`tiles`, where ``count`` says how many programs each tensor has."""
        return self.once(key, lambda: to_device(pair_programs(host_int64(count())), self.device))

    def spans(self, key: Hashable, count: Callable[[], Sequence[int]]) -> Tensor:
        """int64 ``[T b, 2]``: for each row the first of its programs in :meth:`pairs`, and how many there are."""
        return self.once(("spans", key), lambda: to_device(spans_of(host_int64(count())), self.device))

    def counts(self, block: int) -> list[int]:
        """Number of blocks of this size in each row."""
        return [-(-n // block) for n in self.sizes]

    def heads(self, block: int) -> Tensor:
        """int64 ``[T b]``: the first block of each row, counted over all of them."""

        def make() -> list[int]:
            begins, at = [], 0
            for count in self.counts(block):
                begins.append(at)
                at += count
            return begins

        return self.numbers(("heads", block), make, torch.int64)

    def kept(self, counts: Sequence[int]) -> Tensor:
        """int64 ``[T b, 2]``: how many numbers of each row are listed, and where they begin among those of all rows."""
        counts = tuple(counts)

        def make() -> list[int]:
            begins = itertools.accumulate(counts, initial=0)
            return [number for pair in zip(counts, begins, strict=False) for number in pair]

        return self.numbers(("kept", counts), make, torch.int64).view(-1, 2)

    def roots(self, block: int) -> Tensor:
        """float32 ``[blocks]``: :func:`grace.kernels.block_roots` of the blocks of all rows, side by side."""

        def make() -> list[float]:
            return [math.sqrt(min(block, n - begin)) for n in self.sizes for begin in range(0, n, block)]

        return self.numbers(("roots", block), make, torch.float32)

    def owners(self, block: int) -> Tensor:
        """int64 ``[blocks]``: which row each block belongs to."""
        counts = self.counts(block)
        return self.numbers(
            ("owners", block), lambda: [t for t, nb in enumerate(counts) for _ in range(nb)], torch.int64
        )

    def clip(self, block: int) -> int:
        """The size that cuts all rows into the same blocks, none of them longer than the longest row."""
        return min(block, max(self.sizes))


def _aligned(count: int) -> int:
    """Bytes that so many marks take: those of each launch begin at a multiple of 16 bytes, so that it is the same kernel."""
    return -(-count // _EVEN) * _EVEN


class _Table(NamedTuple):
    """As :class:`TensorList` has them."""

    words: Tensor
    even: bool
    in_place: bool


def _are_the_same(given: Sequence[Sequence[Tensor] | None], known: Sequence[Sequence[Tensor] | None]) -> bool:
    """True if these are the rooms that are known, and nothing else is among them."""
    for new, old in zip(given, known, strict=False):
        if new is not old or not (new is None or type(new) is Rooms):
            return False
    return len(known) > 0


def _addresses(xs: Sequence[Tensor] | None) -> list[int] | None:
    return None if xs is None else [x.data_ptr() for x in xs]


def _key(parts: Sequence[list[int] | None], gap: tuple[int, int]) -> tuple[int, ...]:
    """The addresses, stride and bytes of a number that a table is for."""
    return (*[address for part in parts for address in part or (0,)], *gap)


class _InRows(Sequence[Tensor]):
    """Tensors as rows of n numbers each, once somebody looks at them: kernels know their addresses."""

    __slots__ = ("_given", "_sizes", "_there")

    def __init__(self, given: Sequence[Tensor], sizes: Sequence[int]):
        self._given, self._sizes, self._there = given, sizes, False

    def _all(self) -> Sequence[Tensor]:
        if not self._there:
            self._given = [x.view(-1, n) for x, n in zip(self._given, self._sizes, strict=True)]
            self._there = True
        return self._given

    def __len__(self) -> int:
        return len(self._given)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._all())

    @overload
    def __getitem__(self, key: int) -> Tensor: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[Tensor]: ...
    def __getitem__(self, key: int | slice) -> Tensor | Sequence[Tensor]:
        return self._all()[key]


def pair_programs(counts: Tensor) -> Tensor:
    """int32 ``[programs, 2]``: for each program its row and its number there, where each row has ``counts [rows]`` int64."""
    owners = torch.repeat_interleave(torch.arange(len(counts), dtype=torch.int64, device="cpu"), counts)
    return torch.stack(
        (owners, torch.arange(len(owners), dtype=torch.int64, device="cpu") - (counts.cumsum(0) - counts)[owners]),
        dim=1,
    ).to(torch.int32)


def spans_of(counts: Tensor) -> Tensor:
    """int64 ``[rows, 2]``: the first of each row's ``counts [rows]`` int64 programs, and how many it has."""
    return torch.stack((counts.cumsum(0) - counts, counts), dim=1)


def carry_together(parts: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Tensors of any shapes, of integers, on the device: one copy of all."""
    words = [part.contiguous().view(-1).view(torch.uint8) for part in parts]
    padded = [torch.nn.functional.pad(word, (0, -len(word) % 8)) for word in words]
    flat = to_device(torch.cat(padded), device).split_with_sizes([len(word) for word in padded])
    return [
        piece[: len(word)].view(part.dtype).view(part.shape)
        for piece, word, part in zip(flat, words, parts, strict=True)
    ]


@operation
def poison_many(flags: Tensor, many: TensorList) -> None:
    """Sets each tensor to NaN whose flag, of ``[T]`` bool, is not set."""


@operation
def agree_many(
    rows: Tensor,
    words: Tensor,
    good: int | Tensor,
    legal: Tensor,
    many: TensorList,
    *,
    kept: Tensor | None = None,
    clear: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compares the headers of all ranks for each tensor, in one pass: sets those to NaN, or with ``clear`` to 0, that some
    rank has not seen finite, whose wires are illegal, or that are not ``kept [T]``.

    Args:
        rows: the messages ``[W, s]`` uint8 of all ranks, each a multiple of 4 bytes long.
        words: int64 ``[T]``: where the headers are in each, in int32.
        good: the header of what is finite, in a captured step a 0-d int32 tensor; ``good + 1`` is that of what is not.
        legal: bool ``[T]``, which tensors have legal wires.
        many: the T tensors.
        kept: bool ``[T]``; None: all are.
        clear: what is not as it should be becomes 0.

    Returns:
        bool ``[3, T]``, which tensors are as they should be; have headers that a sender writes; have wires that are legal, or
        that nobody reads, since some rank has not seen the tensor finite; and int32 ``[W, T]``, the headers.
    """


@operation
def settle_many(flags: Tensor, many: TensorList, *, drops: bool = True) -> None:
    """Makes of each rest what the memory is after the step: the rest where its flag, of ``[T]`` bool, is set; else the memory,
    which with ``drops`` has 0 for what is beyond a 64th of the largest float32, inf or NaN.
    """
