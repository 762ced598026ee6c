"""GRACE's protocol over Grace's transports, for users' own compressors, memories and communicators.

compensate, compress, update, send, decompress, aggregate; tensors of any type travel as bytes, those without dimensions as one
number; padding is zeros. A context stays where it was made, and decompresses everyone's tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grace.collectives import AllGather, AllReduce, Broadcast, Exchange
from grace.errors import PayloadError, RoundMismatch
from grace.transports.base import Transport


def as_bytes(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors side by side, uint8 ``[size]``."""
    flat = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in tensors]
    return torch.cat(flat) if flat else torch.zeros(0, dtype=torch.uint8, device="cpu")


def from_bytes(raw: Tensor, like: Sequence[Tensor], rows: Sequence[int] | None = None) -> list[Tensor]:
    """The inverse of :func:`as_bytes`. ``like`` has the dtypes and shapes, ``rows`` the first dimensions, if they differ.

    Raises:
        PayloadError: the bytes do not make these tensors.
    """
    shapes = [tuple(t.shape) for t in like]
    if rows is not None:
        shapes = [(count, *shape[1:]) if shape else () for count, shape in zip(rows, shapes, strict=True)]
    sizes = [torch.Size(shape).numel() * t.element_size() for shape, t in zip(shapes, like, strict=True)]
    if sum(sizes) != raw.numel():
        raise PayloadError(f"{raw.numel()} bytes cannot be tensors of {sizes} bytes")
    pieces = raw.split_with_sizes(sizes)
    return [
        piece.clone().view(t.dtype).view(shape) for piece, t, shape in zip(pieces, like, shapes, strict=True)
    ]  # a clone is aligned


def count_rows(tensors: Sequence[Tensor]) -> list[int]:
    """The first dimensions; 1 for tensors without one."""
    return [t.shape[0] if t.ndim else 1 for t in tensors]


def size_of(like: Sequence[Tensor], rows: Sequence[int]) -> int:
    """Bytes of tensors like these, with these first dimensions."""
    per_row = [t.element_size() * (torch.Size(t.shape[1:]).numel() if t.ndim else 1) for t in like]
    return sum(count * size for count, size in zip(rows, per_row, strict=True))


def everyones(tensors: Sequence[Tensor], same: bool) -> Exchange[list[list[Tensor]]]:
    """Every rank's list of tensors. ``same``: their sizes are the same on all ranks."""
    own = as_bytes(tensors)
    if same:
        received = yield AllGather(own)
        return [from_bytes(row, tensors) for row in received]
    counts = torch.tensor(count_rows(tensors), dtype=torch.int64, device=own.device)
    all_rows = (yield AllGather(counts)).tolist()
    sizes = [size_of(tensors, rows) for rows in all_rows]
    padded = own.new_zeros(max(sizes))
    padded[: own.numel()] = own
    received = yield AllGather(padded)
    return [from_bytes(row[:size], tensors, rows) for row, size, rows in zip(received, sizes, all_rows, strict=True)]


def send_receive(kind: str, compressor: Any, tensors: Sequence[Tensor], ctx: Any, world: int) -> Exchange[Any]:
    """The result from all workers' tensors, exchanged by ``kind``: "allreduce", "allgather" or "broadcast"."""
    if kind == "allreduce":
        sums = []
        for t in tensors:
            total = yield AllReduce(t.detach().reshape(max(t.shape, (1,))), "sum")
            sums.append(total.view(t.shape) / world if compressor.average else total.view(t.shape))
        return compressor.decompress(sums, ctx)
    if kind == "broadcast" and compressor.tensors_size_are_same:
        ranks = []
        for root in range(world):
            raw = yield Broadcast(as_bytes(tensors), root)
            ranks.append(from_bytes(raw, tensors))
    else:
        ranks = yield from everyones(tensors, compressor.tensors_size_are_same)
    total = compressor.aggregate([compressor.decompress(row, ctx) for row in ranks])
    return total / world if compressor.average else total


def compare(transport: Transport, own: str, seconds: float) -> None:
    """Before a tensor's first exchange, all ranks compare which tensor it is. GRACE averaged whatever arrived together.

    Raises:
        RoundMismatch: they differ, on all ranks.
    """
    told = transport.all_gather_text(own, seconds=seconds)
    if len(set(told)) > 1:
        who = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(told))
        raise RoundMismatch(f"ranks exchange different tensors; all give the same ones, in one order. {who}")
