"""Collectives inside one machine through memory that its processes share: no system call, and no copy into a socket.

Sums are made in the order of the ranks, ``((x_0 + x_1) + x_2) + ...``, for a mean each divided by W first; those of 16-bit
floats in float32. So all ranks have the same bits, those of the simulator in float32 and float64. Gloo adds up in the order of
its ring, which gives the same bits for two ranks.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from grace.collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Collective,
    Permute,
    ReduceOp,
    signature,
)
from grace.errors import TransportError
from grace.transports.base import Transport, Wrapper
from grace.transports.joining import join
from grace.transports.reducing import reduce_rows
from grace.transports.refusing import DEVICES, refuse_unfit
from grace.transports.segment import LINE, Segment
from grace.transports.torch_distributed import through_host

SLOT = 4 << 20  # bytes: what is larger goes in pieces, which stay in a cache
_ALONE = 16 << 10  # bytes that each rank adds up by itself rather than wait for the others' shares
_FOREVER = 1800.0  # seconds, where the transport below does not say how long it waits
_log = logging.getLogger("grace")


class MachineTransport(Wrapper):
    """The ranks of one machine, over memory that they share; where they cannot share any, over the transport below.

    The first :meth:`all_gather_text` finds out, on all ranks alike; ``why`` says why there is no such memory. Tensors of an
    accelerator go through the host's memory.

    Args:
        line: between these ranks, which is taken over. It tells texts, and waits for a rank as long as its ``seconds`` say.
        ranks: their numbers in the job, as errors name them; as on the line by default.
        slot: bytes that a rank can give in one turn, a multiple of 64 of at least 64 for each rank.
    """

    def __init__(self, line: Transport, ranks: Sequence[int] | None = None, slot: int = SLOT):
        super().__init__(line)
        self.ranks = tuple(range(self.world)) if ranks is None else tuple(ranks)
        self._slot = max(slot, LINE * self.world)
        self._segment: Segment | None = None
        self._joined = False
        self.why = ""

    @property
    def name(self) -> str:
        """``shared memory``, or that of the transport below."""
        return (
            "shared memory" if self._segment is not None else str(getattr(self.transport, "name", "another transport"))
        )

    def all_gather_text(self, text: str, *, seconds: float) -> list[str]:
        """See :class:`grace.transports.base.Transport`. The first time the ranks try to share memory."""
        texts = self.transport.all_gather_text(text, seconds=seconds)
        if not self._joined:
            self._joined = True
            patience = float(getattr(self.transport, "seconds", None) or _FOREVER)
            joined = join(self.transport, self.ranks, self._slot, seconds, patience)
            if isinstance(joined, Segment):
                self._segment = joined
            else:
                self.why = f"no shared memory: {joined}"
            if self.rank == 0:
                ranks = ", ".join(map(str, self.ranks))
                _log.info("ranks %s exchange over %s%s", ranks, self.name, f": {self.why}" if self.why else "")
        return texts

    def run(self, op: Collective) -> Tensor:
        """See :class:`grace.transports.base.Transport`.

        Raises:
            TransportError: a collective that is refused (nothing was written then), or that failed: a rank has died, left,
                asked for another one, or did not come in time; on all ranks, and it names that rank.
        """
        segment = self._segment
        if segment is None:
            return self.transport.run(op)
        refuse_unfit(op, self.rank, self.world, DEVICES["gloo"])
        if not op.buf.is_cpu:
            return through_host(op, self.run)
        try:
            return _Turns(segment, op).run()
        except TransportError as error:
            raise TransportError(
                f"rank {self.ranks[self.rank]}: {signature(op)} failed in shared memory: {error}"
            ) from None

    def close(self, error: BaseException | None = None) -> None:
        """See :class:`grace.transports.base.Transport`. The memory goes with the last rank that has it."""
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.end()
        super().close(error)


class _Turns:
    """A collective, in as many turns as its buffer needs."""

    def __init__(self, segment: Segment, op: Collective):
        self.segment, self.op = segment, op
        self.rank, self.world = segment.rank, segment.world
        self.buf = op.buf.detach().contiguous()
        self.dtype = self.buf.dtype
        self.asked = zlib.crc32(signature(op).encode())

    def run(self) -> Tensor:
        op, buf = self.op, self.buf
        if isinstance(op, AllReduce):
            out = buf if op.donate else torch.empty_like(buf)
            self._all_reduce(buf.view(-1), op.op, out.view(-1))
        elif isinstance(op, AllGather):
            out = buf.new_empty(self.world, *buf.shape) if op.into is None else op.into
            self._all_gather(buf.view(-1), out.view(self.world, buf.numel()))
        elif isinstance(op, Broadcast | Permute):
            sources = {op.root} if isinstance(op, Broadcast) else {source for source, _ in op.pairs}
            source: int | None = self._source(op)
            out = torch.zeros_like(buf) if source is None else torch.empty_like(buf)
            self._send(buf.view(-1), self.rank in sources, source, out.view(-1))
        else:
            out = torch.empty_like(buf) if isinstance(op, AllToAll) else buf.new_empty(buf.shape[1:])
            self._scatter(buf.view(self.world, buf[0].numel()), getattr(op, "op", None), out)
        return out

    def _source(self, op: Broadcast | Permute) -> int | None:
        """The rank whose buffer this rank gets."""
        if isinstance(op, Broadcast):
            return op.root
        return next((source for source, destination in op.pairs if destination == self.rank), None)

    def _own(self) -> Tensor:
        return self.segment.own.view(self.dtype)

    def _turn(self) -> Tensor:
        return self.segment.turn(self.asked).view(self.dtype)

    def _spans(self, size: int, most: int) -> Iterator[slice]:
        """Pieces of at most so many numbers; one even where there are none, so that all ranks meet."""
        for start in range(0, max(size, 1), most):
            yield slice(start, min(start + most, size))

    def _write(self, x: Tensor, op: ReduceOp | None, out: Tensor) -> None:
        if op == "mean":
            torch.mul(x, 1 / self.world, out=out)  # before the sum, so that nothing overflows
        else:
            out.copy_(x)

    def _all_reduce(self, x: Tensor, op: ReduceOp, out: Tensor) -> None:
        most = self.segment.slot // x.element_size()
        for span in self._spans(x.numel(), most):
            size = span.stop - span.start
            self._write(x[span], op, self._own()[:size])
            rows, result = self._turn()[:, :size], out[span]
            if size * x.element_size() <= _ALONE:
                reduce_rows(rows, op, result)
                continue
            share = -(-size // self.world)
            parts = [slice(min(r * share, size), min(r * share + share, size)) for r in range(self.world)]
            here = parts[self.rank]
            reduce_rows(rows[:, here], op, self._own()[: here.stop - here.start])
            sums = self._turn()
            for rank, part in enumerate(parts):
                result[part].copy_(sums[rank, : part.stop - part.start])

    def _all_gather(self, x: Tensor, out: Tensor) -> None:
        for span in self._spans(x.numel(), self.segment.slot // x.element_size()):
            size = span.stop - span.start
            self._own()[:size].copy_(x[span])
            out[:, span].copy_(self._turn()[:, :size])

    def _send(self, x: Tensor, sends: bool, source: int | None, out: Tensor) -> None:
        for span in self._spans(x.numel(), self.segment.slot // x.element_size()):
            size = span.stop - span.start
            if sends:
                self._own()[:size].copy_(x[span])
            rows = self._turn()
            if source is not None:
                out[span].copy_(rows[source, :size])

    def _scatter(self, rows: Tensor, op: Any, out: Tensor) -> None:
        """Row r goes to rank r, which keeps all of them, or adds them up."""
        most = self.segment.slot // self.world // LINE * LINE // rows.element_size()
        for span in self._spans(rows.shape[1], most):
            size = span.stop - span.start
            self._write(rows[:, span], op, self._own()[: self.world * size].view(self.world, size))
            theirs = self._turn()[:, self.rank * size : (self.rank + 1) * size]
            if op is None:
                out.view(self.world, rows.shape[1])[:, span].copy_(theirs)
            else:
                reduce_rows(theirs, op, out.view(-1)[span])
