"""Many exchanges as one: in each round, those that ask for the same kind and dtype share one collective.

The payloads of a bucket travel in one buffer, whose layout is computed once and cached. Buffers that already lie side
by side (the gradients of a bucket of DistributedDataParallel) and are donated travel as they are, without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor

from grace.collectives import AllGather, AllReduce, AllToAll, Collective, Exchange, ReduceScatter
from grace.contract.workspace import Workspace

T = TypeVar("T")
_ALIGN = 4  # bytes: where a piece may begin
_Key: TypeAlias = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where each buffer lies in a row of the fused one: ``sizes`` numbers, then ``gaps`` unused ones."""

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
        found = self._known.get((dtype, sizes))
        if found is None:
            step = max(1, _ALIGN // dtype.itemsize)
            found = self._known[dtype, sizes] = _Layout.align(sizes, step)
        return found


def together(
    exchanges: Sequence[Exchange[T]], layouts: Layouts | None = None, workspace: Workspace | None = None
) -> Exchange[list[T]]:
    """One exchange that runs all of these and returns their results, in their order.

    All ranks must pass the same exchanges in the same order. If one fails, all are closed.
    """
    layouts = layouts or Layouts()
    done: dict[int, T] = {}
    batches: dict[_Key, dict[int, Collective]] = {}

    def advance(i: int, message: Tensor | None) -> None:
        try:
            op = next(exchanges[i]) if message is None else exchanges[i].send(message)
        except StopIteration as stop:
            done[i] = stop.value
        else:
            batches.setdefault(_kind(op), {})[i] = op

    try:
        for i in range(len(exchanges)):
            advance(i, None)
        while batches:
            asked = list(batches.values())
            batches.clear()
            # all collectives of a round before any answer is handed out: if the second fails, no memory has committed
            inbox: dict[int, Tensor] = {}
            for batch in asked:
                answers = yield from one_collective(list(batch.values()), layouts, workspace)
                inbox.update(zip(batch, answers, strict=True))
            for i, answer in inbox.items():
                advance(i, answer)
    except BaseException:
        for exchange in exchanges:
            exchange.close()
        raise
    return [done[i] for i in range(len(exchanges))]


def _kind(op: Collective) -> _Key:
    """Collectives of one kind can be fused: all fields but the buffer agree, and the buffer's dtype and device."""
    if type(op) is AllReduce:  # most are
        return (AllReduce, op.buf.dtype, op.buf.device, op.op, op.axis)
    lead = op.buf.shape[:1] if isinstance(op, AllToAll | ReduceScatter) else ()
    details = [getattr(op, slot) for slot in op.__slots__ if slot not in ("buf", "donate", "into")]
    return (type(op), op.buf.dtype, op.buf.device, *lead, *details)


def one_collective(ops: Sequence[Collective], layouts: Layouts, workspace: Workspace | None) -> Exchange[list[Tensor]]:
    """Performs collectives of one kind, dtype and device as one; returns their answers."""
    first = ops[0]
    if len(ops) == 1:
        return [(yield first)]
    if isinstance(first, AllReduce) and (whole := _side_by_side(ops)) is not None:
        answer = yield replace(first, buf=whole, donate=True)
        if answer.data_ptr() != whole.data_ptr():
            whole.copy_(answer)
        return [op.buf for op in ops]
    leads = 1 if isinstance(first, AllToAll | ReduceScatter) else 0  # dimensions of buf in front of the data
    lead = tuple(first.buf.shape[:leads])
    rows = [op.buf.reshape((*lead, -1)) for op in ops]
    layout = layouts.of(tuple(row.shape[-1] for row in rows), first.buf.dtype)
    fused = yield _with_buffer(first, _fuse(rows, lead, layout, workspace))
    front = 1 if isinstance(first, AllGather | AllToAll) else 0  # dimensions of the answer in front of the data
    pieces = fused.split_with_sizes(layout.parts, dim=-1)
    return [
        piece.reshape((*fused.shape[:front], *op.buf.shape[leads:]))
        for piece, op in zip(pieces[:: layout.every], ops, strict=True)
    ]


def _with_buffer(op: Collective, buf: Tensor) -> Collective:
    if isinstance(op, AllReduce):
        return replace(op, buf=buf, donate=True)
    if isinstance(op, AllGather):
        return replace(op, buf=buf, into=None)  # rooms for its parts are none for it
    return replace(op, buf=buf)


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


def _side_by_side(ops: Sequence[Collective]) -> Tensor | None:
    """The flat tensor that these donated buffers cover without a gap, in their order; None if they do not."""
    at = ops[0].buf.data_ptr()
    for op in ops:
        buf = op.buf
        if not (isinstance(op, AllReduce) and op.donate and buf.is_contiguous() and buf.data_ptr() == at):
            return None
        at += buf.numel() * buf.element_size()
    start = ops[0].buf
    size = (at - start.data_ptr()) // start.element_size()
    if start.untyped_storage().data_ptr() + start.untyped_storage().nbytes() < at:
        return None  # neighbors by chance, not in one storage
    return start.as_strided((size,), (1,))
