"""Payloads that carry a checksum: what was damaged on its way, or in memory before it was read, is refused on receipt.

Each payload of an AllGather, AllToAll, Broadcast or Permute is followed by four bytes, the CRC-32 of its bytes. What the
network itself adds up, an AllReduce or ReduceScatter, has no sender whose bytes could be checked.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from grace.collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Collective,
    Exchange,
    ReduceScatter,
    signature,
    watch,
)
from grace.errors import PayloadError

T = TypeVar("T")
SIZE = 4  # bytes


def checksummed(
    exchange: Exchange[T], rank: int, world: int, axes: Mapping[str, tuple[int, int]] | None = None, step: int = 0
) -> Exchange[T]:
    """The same exchange, with checked payloads; all ranks of it are.

    On an accelerator the host reads all payloads to check them, and waits for them.

    Args:
        exchange: of this rank.
        rank: this worker's.
        world: how many workers there are.
        axes: its place along each axis of a grid, and how many there are; see :class:`grace.Peer`.
        step: for the error.

    Raises:
        PayloadError: a payload is not what was sent. Names the sender, the rank that has read it, and the step.
    """
    places = {**(axes or {}), "": (rank, world)}

    def check(op: Collective, answer: Tensor) -> Tensor:
        try:
            return _open(op, answer, rank, places[op.axis][0])
        except PayloadError as error:
            raise PayloadError(f"step {step}: {error}") from None

    return watch(exchange, lambda op: _seal(op, places[op.axis][0]), check)


def _seal(op: Collective, place: int) -> Collective:
    """The collective with a checksum behind each payload that this rank sends."""
    if isinstance(op, AllReduce | ReduceScatter):
        return op
    if isinstance(op, AllToAll):
        rows = _to_bytes(op.buf).view(op.buf.shape[0], -1)
        return replace(op, buf=torch.cat([rows, torch.stack([_checksum(row) for row in rows])], 1))
    raw = _to_bytes(op.buf)
    if isinstance(op, Broadcast) and place != op.root:
        return replace(op, buf=raw.new_empty(raw.numel() + SIZE))
    sealed = torch.cat([raw, _checksum(raw)])
    return replace(op, buf=sealed, into=None) if isinstance(op, AllGather) else replace(op, buf=sealed)


def _open(op: Collective, answer: Tensor, rank: int, place: int) -> Tensor:
    """The answer to ``op``, from the answer to what :func:`_seal` has made of it.

    Raises:
        PayloadError: a payload is not what was sent.
    """
    if isinstance(op, AllReduce | ReduceScatter):
        return answer
    if isinstance(op, AllGather | AllToAll):
        rows = answer
        senders = list(range(len(rows)))
    else:
        rows = answer[None]
        senders = [op.root] if isinstance(op, Broadcast) else [s for s, destination in op.pairs if destination == place]
    for row, sender in zip(rows, senders, strict=False):  # of a Permute, nobody may have sent
        raw, sum_of = row[:-SIZE], row[-SIZE:]
        if not torch.equal(_checksum(raw), sum_of):
            raise PayloadError(_describe(op, rank, sender))
    shape = (len(rows), *op.buf.shape) if isinstance(op, AllGather) else op.buf.shape
    payloads = rows[:, :-SIZE].clone(memory_format=torch.contiguous_format).view(-1).view(op.buf.dtype).view(shape)
    return op.into.copy_(payloads) if isinstance(op, AllGather) and op.into is not None else payloads


def _to_bytes(x: Tensor) -> Tensor:
    return x.detach().contiguous().view(-1).view(torch.uint8)


def _checksum(raw: Tensor) -> Tensor:
    """Four bytes, the lowest first, where ``raw`` is."""
    number = zlib.crc32(raw.contiguous().cpu().numpy().data)
    return torch.frombuffer(bytearray(number.to_bytes(SIZE, "little")), dtype=torch.uint8).to(raw.device)


def _describe(op: Collective, rank: int, sender: int) -> str:
    where = f" along {op.axis}" if op.axis else ""
    return (
        f"what rank {sender}{where} sent in {signature(op)} is damaged on rank {rank}: its checksum does not match. Memory, a "
        "device or the network between the two has flipped bits: end the processes, look at these machines, and start again "
        "from a checkpoint"
    )
