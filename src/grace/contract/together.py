"""Many exchanges as one: in each round, those that ask for the same kind and dtype share one collective.

The payloads of a bucket travel in one buffer, whose layout is computed once and cached. Buffers that already lie side
by side (the gradients of a bucket of DistributedDataParallel) and are donated travel as they are, without a copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

from grace.collectives import AllGather, AllReduce, AllToAll, Collective, Exchange, Parts, ReduceScatter
from grace.compute import backends
from grace.compute.launching import READ
from grace.contract.workspace import Workspace
from grace.flags.finite import on_host

if TYPE_CHECKING:
    from grace.contract.peer import Peers

T = TypeVar("T")
_ALIGN = 4  # bytes: where a piece may begin
_Key: TypeAlias = tuple[object, ...]
_NOT_OF_KIND = ("buf", "donate", "into", "parts")


@dataclass(frozen=True, slots=True)
class _Layout:
    """Positions of the buffers in a row of the fused one: ``sizes`` numbers, then ``gaps`` unused ones."""

    sizes: tuple[int, ...]
    gaps: tuple[int, ...]
    width: int
    parts: tuple[int, ...]  # sizes and gaps in turn; without the gaps if there are none
    every: int  # the distance between two buffers among the parts

    @classmethod
    def align(cls, sizes: tuple[int, ...], step: int) -> _Layout:
        """Each buffer begins at a multiple of ``step`` numbers."""
        gaps = tuple(-size % step for size in sizes)
        parts = tuple(part for pair in zip(sizes, gaps, strict=True) for part in pair) if any(gaps) else sizes
        return cls(sizes, gaps, sum(sizes) + sum(gaps), parts, 2 if any(gaps) else 1)


class Layouts:
    """The layouts computed so far."""

    def __init__(self) -> None:
        self._known: dict[_Key, _Layout] = {}

    def of(self, sizes: tuple[int, ...], dtype: torch.dtype) -> _Layout:
        """The layout for buffers with these numbers of elements in a row."""
        layout = self._known.get((dtype, sizes))
        if layout is None:
            step = max(1, _ALIGN // dtype.itemsize)
            layout = self._known[dtype, sizes] = _Layout.align(sizes, step)
        return layout


class _Asked(NamedTuple):
    """A collective that exchange ``i`` asks for. places: where what it is about stands in the order of bytes."""

    i: int
    op: Collective
    places: tuple[int, ...]


def together(
    exchanges: Sequence[Exchange[T]],
    layouts: Layouts | None = None,
    workspace: Workspace | None = None,
    places: Sequence[Sequence[int]] | None = None,
    *,
    labels: bool = False,
) -> Exchange[list[T]]:
    """An exchange that runs all of these and returns their results, in their order.

    All ranks must pass the same exchanges in the same order. If one fails, all are closed.

    ``places``: for each exchange which of a bucket's tensors it is about; by default exchange i is about tensor i. The bytes
    of a collective are in the order of the bucket, whichever tensors share an exchange. Without it, or with ``labels``, what
    is asked for says whose its parts are, so that exchanges may be nested.
    """
    layouts = layouts or Layouts()
    done: dict[int, T] = {}
    asked: list[_Asked] = []

    def advance(i: int, message: Tensor | None) -> None:
        try:
            op = next(exchanges[i]) if message is None else exchanges[i].send(message)
        except StopIteration as stop:
            done[i] = stop.value
        else:
            asked.append(_Asked(i, op, _places(op, (i,) if places is None else places[i])))

    try:
        for i in range(len(exchanges)):
            advance(i, None)
        while asked:
            kinds: dict[_Key, list[_Asked]] = {}
            for request in sorted(asked, key=_first_place):
                kinds.setdefault(_kind(request.op), []).append(request)
            asked.clear()
            # all collectives of a round before any answer is handed out: if the second fails, no memory has committed
            inbox: dict[int, Tensor] = {}
            for batch in kinds.values():
                answers = yield from _one_of_kind(batch, layouts, workspace, labels or places is None)
                inbox.update(zip([request.i for request in batch], answers, strict=True))
            for i in sorted(inbox):
                advance(i, inbox[i])
    except BaseException:
        for exchange in exchanges:
            exchange.close()
        raise
    return [done[i] for i in range(len(exchanges))]


def _places(op: Collective, of: Sequence[int]) -> tuple[int, ...]:
    """Places of the tensors that a collective is about."""
    return (of[0],) if op.parts is None else tuple([of[k] for k in op.parts.of])


def _first_place(asked: _Asked) -> int:
    return asked.places[0]


def _one_of_kind(
    asked: Sequence[_Asked], layouts: Layouts, workspace: Workspace | None, labels: bool
) -> Exchange[list[Tensor]]:
    """Performs collectives of one kind as one: their answers. ``labels``: whether it says whose its parts are."""
    if all(first.places[-1] < other.places[0] for first, other in itertools.pairwise(asked)):
        of = [place for request in asked for place in request.places] if labels else None
        return (yield from one_collective([request.op for request in asked], layouts, workspace, of))
    pieces = [piece for request in asked for piece in _cut(request)]
    order = sorted(range(len(pieces)), key=lambda k: pieces[k].places[0])
    of = [pieces[k].places[0] for k in order] if labels else None
    answers = yield from one_collective([pieces[k].op for k in order], layouts, workspace, of)
    back = [answer for _, answer in sorted(zip(order, answers, strict=True), key=lambda pair: pair[0])]
    joined, at = [], 0
    for request in asked:
        count = len(request.places)
        joined.append(back[at] if count == 1 else torch.cat(back[at : at + count], dim=-1))
        at += count
    return joined


def _cut(asked: _Asked) -> list[_Asked]:
    """Splits a request for several tensors into one for each of them."""
    i, op, places = asked
    if op.parts is None or len(places) == 1:
        return [asked]
    rows = op.buf.split_with_sizes(op.parts.sizes, dim=-1)
    op = replace(op, into=None, parts=None) if isinstance(op, AllGather) else replace(op, parts=None)
    return [_Asked(i, replace(op, buf=row), (place,)) for row, place in zip(rows, places, strict=True)]


def _kind(op: Collective) -> _Key:
    """Collectives of one kind can be fused: all fields but the buffer agree, and the buffer's dtype and device."""
    if type(op) is AllReduce:  # most are
        return (AllReduce, op.buf.dtype, op.buf.device, op.op, op.axis)
    lead = op.buf.shape[:1] if isinstance(op, AllToAll | ReduceScatter) else ()
    details = [getattr(op, slot) for slot in op.__slots__ if slot not in _NOT_OF_KIND]
    return (type(op), op.buf.dtype, op.buf.device, *lead, *details)


def one_collective(
    ops: Sequence[Collective], layouts: Layouts, workspace: Workspace | None, of: Sequence[int] | None = None
) -> Exchange[list[Tensor]]:
    """Performs collectives of one kind, dtype and device as one; returns their answers. ``of``: whose their parts are, one
    after the other, if it is to be said.
    """
    first = ops[0]
    if len(ops) == 1:
        return [(yield _label(first, of, _sizes(ops)))]
    donated = all(isinstance(op, AllReduce) and op.donate for op in ops)
    if donated and (whole := side_by_side([op.buf for op in ops])) is not None:
        answer = yield _label(_with_buffer(first, whole), of, _sizes(ops))
        if answer.data_ptr() != whole.data_ptr():
            whole.copy_(answer)
        return [op.buf for op in ops]
    leads = 1 if isinstance(first, AllToAll | ReduceScatter) else 0  # dimensions of buf in front of the data
    lead = tuple(first.buf.shape[:leads])
    rows = [op.buf.reshape((*lead, -1)) for op in ops]
    layout = layouts.of(tuple(row.shape[-1] for row in rows), first.buf.dtype)
    fused = yield _label(_with_buffer(first, _fuse(rows, lead, layout, workspace)), of, _sizes(ops, layout))
    front = 1 if isinstance(first, AllGather | AllToAll) else 0  # dimensions of the answer in front of the data
    pieces = fused.split_with_sizes(layout.parts, dim=-1)
    return [
        piece.reshape((*fused.shape[:front], *op.buf.shape[leads:]))
        for piece, op in zip(pieces[:: layout.every], ops, strict=True)
    ]


def _sizes(ops: Sequence[Collective], layout: _Layout | None = None) -> list[int]:
    """The sizes of the parts of collectives that are put one after the other."""
    sizes: list[int] = []
    gaps = itertools.repeat(0) if layout is None else layout.gaps
    for k, (op, gap) in enumerate(zip(ops, gaps, strict=False)):
        whole = op.buf.numel() if layout is None else layout.sizes[k]
        sizes += [whole] if op.parts is None else op.parts.sizes
        sizes[-1] += gap
    return sizes


def _label(op: Collective, of: Sequence[int] | None, sizes: Sequence[int]) -> Collective:
    """The same, which says whose its parts are."""
    if of is None:
        return op if op.parts is None else replace(op, parts=None)
    return replace(op, parts=Parts(tuple(of), tuple(sizes)))


def _with_buffer(op: Collective, buf: Tensor) -> Collective:
    if isinstance(op, AllReduce):
        return replace(op, buf=buf, donate=True, parts=None)
    if isinstance(op, AllGather):
        return replace(op, buf=buf, into=None, parts=None)  # rooms for its parts are none for it
    return replace(op, buf=buf, parts=None)


def _fuse(rows: list[Tensor], lead: tuple[int, ...], layout: _Layout, workspace: Workspace | None) -> Tensor:
    """The rows ``[*lead, size]`` in one buffer ``[*lead, width]``."""
    like = rows[0]
    shape = (*lead, layout.width)
    out = like.new_empty(shape) if workspace is None else workspace.take(shape, like.dtype, like.device)
    if layout.every == 1:
        return torch.cat(rows, dim=-1, out=out)
    parts: list[Tensor] = []
    for row, gap in zip(rows, layout.gaps, strict=True):
        parts.append(row)
        if gap:
            parts.append(row.new_zeros(*lead, gap))
    return torch.cat(parts, dim=-1, out=out)


def can_go_together(xs: Sequence[Tensor], peers: Peers, *, rows: int = 0, anywhere: bool = False) -> bool:
    """True if kernels for many tensors can take these, of any shapes, where they are: all of one dtype that kernels read, and
    either with memories and places for the rests, or with no rests wanted. With ``rows``, xs have so many of them, and those
    of all may be as far apart. With ``anywhere`` also on the host.
    """
    device, dtype = xs[0].device, xs[0].dtype
    if on_host(device):
        if not anywhere or dtype is not torch.float32:
            return False
    elif not backends.runs_triton(device) or dtype not in READ:
        return False
    if not (peers.memories is not None) == peers.keep_rests == (peers.rests is not None):
        return False
    at = xs[0].get_device()
    if {x.dtype for x in xs} != {dtype} or set(map(Tensor.get_device, xs)) != {at} or not all(map(Tensor.numel, xs)):
        return False
    if rows and not all(x.ndim == 2 and len(x) == rows for x in xs):
        return False
    if all(map(Tensor.is_contiguous, xs)):
        return True
    return rows > 0 and all(x.stride() == (xs[0].stride(0), 1) for x in xs)


def mean_in_place(xs: Sequence[Tensor], workspace: Workspace) -> Exchange[list[Tensor]]:
    """The means of tensors of any shapes, of one dtype, as the network sums them: one all-reduce, side by side as they are
    where they lie so. They may take the places of the tensors.
    """
    if (message := side_by_side(xs)) is None:
        ops = [AllReduce(x, "mean", True) for x in xs]
        layouts = workspace.kept.setdefault(Layouts, Layouts())
        return (yield from one_collective(ops, layouts, workspace, range(len(xs))))
    parts = Parts(tuple(range(len(xs))), tuple([x.numel() for x in xs]))
    answer = yield AllReduce(message, "mean", donate=True, parts=parts)
    if answer.data_ptr() != message.data_ptr():
        message.copy_(answer)
    return list(xs)


def side_by_side(bufs: Sequence[Tensor]) -> Tensor | None:
    """The flat tensor that these, of any shapes, cover without a gap, in their order; None if they do not."""
    at = bufs[0].data_ptr()
    for buf in bufs:
        if buf.data_ptr() != at or not buf.is_contiguous():
            return None
        at += buf.numel() * buf.element_size()
    start = bufs[0]
    size = (at - start.data_ptr()) // start.element_size()
    if start.untyped_storage().data_ptr() + start.untyped_storage().nbytes() < at:
        return None  # neighbors by chance, not in one storage
    return start.as_strided((size,), (1,))
