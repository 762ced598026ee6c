"""The collectives that a method may ask of the network.

A method is a generator. It yields one of these objects and is resumed with the answer, a tensor.

Rule 1. One yield is one collective is one round: count the yields to read the latency.
Rule 2. A yielded buffer is read-only until its answer is there. With ``donate=True`` the answer may live in the
        buffer's storage; otherwise the buffer is left as it was.
Rule 3. All ranks of a group ask for the same collective, with the same dtype and shape, in the same order. Of an
        all-reduce only the number of numbers counts, however they lie.

``axis`` says along which axis of a grid of ranks (:class:`grace.grid.Grid`) a collective goes; "" is all ranks. W, r, roots
and pairs then count along this axis, and every line of ranks along it has a collective of its own.

``parts`` says of what a buffer is made up that holds those of several tensors (:class:`Parts`); networks need not look at it.

Letters: W workers, rank r of W.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
NARROW, ALONG = " in 16 bits", " along "  # in the names of kinds
ReduceOp: TypeAlias = Literal["sum", "mean", "max"]


class Parts(NamedTuple):
    """Parts of a buffer, one after the other along its last dimension. of: whose the parts are, as numbers that
    increase. sizes: how many numbers each has, with the gap behind it.
    """

    of: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Elementwise sum, mean or maximum over ranks. Answer: like ``buf``, on every rank the same bits."""

    buf: Tensor
    op: ReduceOp = "mean"
    donate: bool = False
    axis: str = ""
    parts: Parts | None = None


@dataclass(frozen=True, slots=True)
class AllGather:
    """Everyone gets everyone's buffer. Answer: ``[W, *buf.shape]``, which a network may put into ``into``: storage like it,
    contiguous, that is the network's until the answer is there.
    """

    buf: Tensor
    axis: str = ""
    into: Tensor | None = None
    parts: Parts | None = None


@dataclass(frozen=True, slots=True)
class AllToAll:
    """``buf [W, ...]``: row r goes to rank r. Answer ``[W, ...]``: row r came from rank r."""

    buf: Tensor
    axis: str = ""
    parts: Parts | None = None


@dataclass(frozen=True, slots=True)
class ReduceScatter:
    """``buf [W, ...]``: row r is reduced over ranks and goes to rank r. Answer: ``buf.shape[1:]``."""

    buf: Tensor
    op: ReduceOp = "mean"
    axis: str = ""
    parts: Parts | None = None


@dataclass(frozen=True, slots=True)
class Broadcast:
    """The root's buffer goes to everyone. Answer: like ``buf``; what other ranks yield is only a shape."""

    buf: Tensor
    root: int = 0
    axis: str = ""
    parts: Parts | None = None


@dataclass(frozen=True, slots=True)
class Permute:
    """Point to point: for each ``(source, destination)`` in ``pairs`` the source's buffer goes to the destination.

    A rank may occur once as a source and once as a destination. Answer: like ``buf``; zeros where nobody sent.
    """

    buf: Tensor
    pairs: tuple[tuple[int, int], ...]
    axis: str = ""
    parts: Parts | None = None


Collective: TypeAlias = AllReduce | AllGather | AllToAll | ReduceScatter | Broadcast | Permute
Exchange: TypeAlias = Generator[Collective, Tensor, T]


@dataclass(slots=True)
class Tally:
    """Collectives of one kind: how many, and the bytes of the buffers given to them."""

    count: float = 0
    bytes: float = 0

    def see(self, op: Collective) -> None:
        """Counts one collective."""
        self.count += 1
        self.bytes += op.buf.numel() * op.buf.element_size()

    def add(self, other: Tally, times: float = 1) -> None:
        """Adds ``times`` times another."""
        self.count += times * other.count
        self.bytes += times * other.bytes

    def __sub__(self, before: Tally) -> Tally:
        return Tally(self.count - before.count, self.bytes - before.bytes)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Traffic of one worker: rounds (collectives), bytes sent, bytes received."""

    rounds: int = 0
    sent: int = 0
    received: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.rounds + other.rounds, self.sent + other.sent, self.received + other.received)


def signature(op: Collective) -> str:
    """The properties of a collective that all ranks must agree on, in words: ``AllGather(float32, (4, 2))``, and the axis,
    if there is one. An all-reduce adds up numbers, wherever they lie in a shape: ``AllReduce(mean, float32, (8,))``.
    """
    detail = ""
    if isinstance(op, AllReduce | ReduceScatter):
        detail = f"{op.op}, "
    elif isinstance(op, Broadcast):
        detail = f"root {op.root}, "
    elif isinstance(op, Permute):
        detail = f"{op.pairs}, "
    where = f", along {op.axis}" if op.axis else ""
    shape = (op.buf.numel(),) if isinstance(op, AllReduce) else tuple(op.buf.shape)
    return f"{type(op).__name__}({detail}{str(op.buf.dtype).removeprefix('torch.')}, {shape}{where})"


def kind_of(op: Collective) -> str:
    """The kind of a collective, by which costs and tallies are told apart: ``AllReduce``, ``AllReduce in 16 bits``,
    ``AllGather along machine``. Only what adds up numbers depends on their width.
    """
    narrow = isinstance(op, AllReduce | ReduceScatter) and op.buf.dtype in (torch.float16, torch.bfloat16)
    return f"{type(op).__name__}{NARROW if narrow else ''}{ALONG + op.axis if op.axis else ''}"


def split_kind(kind: str) -> tuple[str, bool, str]:
    """The class of a kind, whether it adds up numbers of 16 bits, and along which axis."""
    where, _, axis = kind.partition(ALONG)
    return where.removesuffix(NARROW), where.endswith(NARROW), axis


def watch(
    exchange: Exchange[T],
    ask: Callable[[Collective], Collective] | None = None,
    hear: Callable[[Collective, Tensor], Tensor] | None = None,
) -> Exchange[T]:
    """The same exchange, seen from outside: what it asks passes ``ask``, and the answers pass ``hear``, which also gets the
    collective as the exchange has asked for it. Errors of the network and of both are raised inside the exchange.
    """
    try:
        op = next(exchange)
        while True:
            try:
                answer = yield op if ask is None else ask(op)
                if hear is not None:
                    answer = hear(op, answer)
            except BaseException as error:
                op = exchange.throw(error)
            else:
                op = exchange.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result


def along(exchange: Exchange[T], axis: str) -> Exchange[T]:
    """The same exchange along an axis: what it asks of all ranks, it asks of those on this rank's line. What it asks along an
    axis already stays there.
    """
    return watch(exchange, lambda op: op if op.axis else replace(op, axis=axis))


def ring_bytes(size: float, world: int) -> float:
    """Bytes that each of ``world`` workers sends, and receives, in a ring all-reduce of ``size`` bytes: 2 size (W-1)/W."""
    return 2 * (world - 1) * size / world


def cost(op: Collective, rank: int, world: int) -> Traffic:
    """Bytes that ``rank`` of ``world``, both along the axis of ``op``, moves for it under the bandwidth-optimal algorithm.

    With N bytes in ``buf``: all-reduce on a ring 2 N (W-1)/W each way; all-gather N (W-1); all-to-all and
    reduce-scatter N (W-1)/W; broadcast N from the root to each other rank; permute N per pair.
    """
    size = op.buf.numel() * op.buf.element_size()
    if isinstance(op, AllReduce):
        moved = math.ceil(ring_bytes(size, world))
        return Traffic(1, moved, moved)
    if isinstance(op, AllGather):
        return Traffic(1, (world - 1) * size, (world - 1) * size)
    if isinstance(op, AllToAll | ReduceScatter):
        return Traffic(1, size - size // world, size - size // world)
    if isinstance(op, Broadcast):
        return Traffic(1, (world - 1) * size, 0) if rank == op.root else Traffic(1, 0, size)
    moves = [(s, d) for s, d in op.pairs if s != d]
    return Traffic(1, size * any(s == rank for s, _ in moves), size * any(d == rank for _, d in moves))
