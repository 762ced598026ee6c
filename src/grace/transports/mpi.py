"""Collectives over MPI, through mpi4py: Open MPI, MPICH, and their derivatives.

- MPI has no time-out, and blocking calls of some MPIs spin: calls are non-blocking, and polled with rests between
  (:class:`grace.transports.mpi_line.Line`).
- MPI has no 16-bit floats, does not define the maximum of a NaN, and does not promise that all ranks get the same bits
  from a sum. The first two are done by an all-to-all, arithmetic in the order of ranks, and an all-gather, with the
  traffic of a ring; the third holds for the MPIs that the tests run on.
- Data that is only moved is bytes to MPI.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Sequence
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
    ReduceScatter,
    signature,
)
from grace.errors import ConfigurationError, TransportError, out_of_range
from grace.transports.launchers import find_mpi_place
from grace.transports.mpi_line import Line
from grace.transports.reducing import reduce_in_parts_, reduce_rows
from grace.transports.refusing import refuse_unfit

_SUMMED_BY_MPI = (torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64)
_PERMUTED = 3  # a tag


def find_why_no_mpi() -> str | None:
    """The reason why mpi4py cannot be used here; None if it can."""
    try:
        importlib.import_module("mpi4py.MPI")
    except ModuleNotFoundError:
        return "mpi4py is not installed (pip install 'grace-dl[mpi]')"
    except (ImportError, RuntimeError) as error:  # the wheel has found no MPI
        return f"mpi4py finds no MPI (pip install mpich, or the system's package): {str(error).splitlines()[0]}"
    return None


class MPITransport:
    """A transport over an MPI communicator. All its ranks make one alike; it does not mix with the user's own messages.

    Args:
        comm: an ``mpi4py.MPI.Intracomm``; None is ``MPI.COMM_WORLD``.
        seconds: how long a collective may take, including the wait for the slowest rank.

    Raises:
        ConfigurationError: mpi4py or MPI is missing, was started without threads, or belongs to another MPI than ``mpirun``.

    A rank that closes its transport, drops it or ends its process tells the others. Those that wait for it get a
    TransportError within milliseconds. Tensors are in the host's memory.

    Example:
        >>> transport = MPITransport(seconds=60)  # doctest: +SKIP
    """

    name = "mpi"

    def __init__(self, comm: Any = None, seconds: float = 300.0):
        if not seconds > 0:
            raise out_of_range("MPITransport", "seconds", seconds, "a number > 0")
        if (absent := find_why_no_mpi()) is not None:
            raise ConfigurationError(f"the transport 'mpi' cannot be had: {absent}")
        mpi = importlib.import_module("mpi4py.MPI")
        _check_start(mpi)
        if comm is None:
            comm = mpi.COMM_WORLD
            _check_launch(mpi, int(comm.size))
        self.why, self.seconds = "", seconds
        self._mpi, self._line = mpi, Line(mpi, comm)
        self.rank, self.world = self._line.rank, self._line.world
        weakref.finalize(self, self._line.leave)  # dropped, or at exit, before MPI ends

    def all_gather_text(self, text: str, *, seconds: float) -> list[str]:
        """See :class:`grace.transports.base.Transport`."""
        self._check_open("tell anything")
        return self._line.all_gather_text(text, seconds)

    def close(self, error: BaseException | None = None) -> None:
        """See :class:`grace.transports.base.Transport`."""
        self._line.leave(error)

    def run(self, op: Collective) -> Tensor:
        """Performs one collective; see :class:`grace.transports.base.Transport`.

        Raises:
            TransportError: what is refused (nothing was sent then), or a collective that failed: a rank has left, or did not
                answer within ``seconds``. The transport is closed then, and the others hear of it.
        """
        self._check_open(f"ask for {signature(op)}")
        refuse_unfit(op, self.rank, self.world, devices=("cpu",))
        line = self._line
        try:
            line.open(self.seconds)
            line.begun += 1
            answer = self._run(op, op.buf.detach().contiguous())
        except TransportError as error:
            self.close(error)
            raise
        except self._mpi.Exception as error:
            self.close(error)
            raise TransportError(
                f"rank {self.rank} of {self.world}: {signature(op)} failed. MPI says: {error}"
            ) from error
        line.ended += 1
        return answer

    def _check_open(self, what: str) -> None:
        if self._line.closed:
            raise TransportError(f"rank {self.rank} has left the group, and cannot {what}")

    def _run(self, op: Collective, buf: Tensor) -> Tensor:
        line = self._line
        if isinstance(op, AllReduce):
            out = buf if op.donate or not op.buf.is_contiguous() else buf.clone()
            if op.op == "mean":
                out.mul_(1 / self.world)  # before the sum, so that nothing overflows
            return self._all_reduce(op, out)
        if isinstance(op, ReduceScatter):
            rows = self._all_to_all(op, buf * (1 / self.world) if op.op == "mean" else buf)
            return reduce_rows(rows, op.op)
        if isinstance(op, AllGather):
            return self._all_gather(op, buf)
        if isinstance(op, AllToAll):
            return self._all_to_all(op, buf)
        if isinstance(op, Broadcast):
            out = buf.clone()
            if out.numel():
                self._wait(op, [line.start(line.comm.Ibcast, self._bytes(out), op.root)], out)
            return out
        return self._permute(op, buf)

    def _all_reduce(self, op: AllReduce, out: Tensor) -> Tensor:
        """In place."""
        line = self._line
        size = out.numel()
        if self.world == 1 or not size:
            return out
        if out.dtype in _SUMMED_BY_MPI and not (op.op == "max" and out.is_floating_point()):
            kind = self._mpi.MAX if op.op == "max" else self._mpi.SUM
            started = line.start(line.comm.Iallreduce, self._mpi.IN_PLACE, out.view(-1).numpy(), kind)
            self._wait(op, [started], out)
            return out
        return reduce_in_parts_(
            out, op.op, self.world, lambda rows: self._all_to_all(op, rows), lambda part: self._all_gather(op, part)
        )

    def _all_gather(self, op: Collective, buf: Tensor) -> Tensor:
        line = self._line
        into = op.into if isinstance(op, AllGather) else None
        out = buf.new_empty(self.world, *buf.shape) if into is None else into
        if out.numel():
            self._wait(op, [line.start(line.comm.Iallgather, self._bytes(buf), self._bytes(out))], buf, out)
        return out

    def _all_to_all(self, op: Collective, buf: Tensor) -> Tensor:
        line = self._line
        out = torch.empty_like(buf)
        if out.numel():
            self._wait(op, [line.start(line.comm.Ialltoall, self._bytes(buf), self._bytes(out))], buf, out)
        return out

    def _permute(self, op: Permute, buf: Tensor) -> Tensor:
        line = self._line
        out, requests = torch.zeros_like(buf), []
        for source, destination in op.pairs:
            if source == destination == self.rank:
                out.copy_(buf)
            elif source == self.rank:
                requests.append(line.start(line.comm.Isend, self._bytes(buf), destination, _PERMUTED))
            elif destination == self.rank:
                requests.append(line.start(line.comm.Irecv, self._bytes(out), source, _PERMUTED))
        self._wait(op, requests, buf, out)
        return out

    def _bytes(self, x: Tensor) -> list[Any]:
        return [x.view(-1).view(torch.uint8).numpy(), self._mpi.BYTE]

    def _wait(self, op: Collective, requests: Sequence[Any], *buffers: Tensor) -> None:
        for request in requests:
            try:
                self._line.wait(request, signature(op), self.seconds)
            except BaseException:
                self._line.abandon(requests, buffers)
                raise


def _check_start(mpi: Any) -> None:
    """Checks that MPI has been started, with threads."""
    if not mpi.Is_initialized() or mpi.Is_finalized():
        state = "has ended" if mpi.Is_initialized() else "was not started (mpi4py.rc.initialize is False)"
        raise ConfigurationError(f"MPI {state}; make the transport between MPI.Init_thread() and MPI.Finalize()")
    if mpi.Query_thread() < mpi.THREAD_SERIALIZED:
        raise ConfigurationError(
            "MPI was started without threads, and exchanges run in one beside the user's; leave mpi4py.rc.thread_level at "
            "'multiple', and start MPI by mpi4py or with MPI_THREAD_MULTIPLE. If this MPI is built without threads, "
            "take another: pip install mpich"
        )


def _check_launch(mpi: Any, world: int) -> None:
    """Checks that ``mpirun`` belongs to this MPI: otherwise each rank silently trains alone."""
    place = find_mpi_place()
    if place is not None and place.world not in (None, 1) and world == 1:
        raise ConfigurationError(
            f"this process is rank {place.rank} of {place.world} ({place.variable}), and MPI says that it is alone: the "
            f"launcher belongs to another MPI than mpi4py, which uses {describe_library(mpi)}. Take the mpiexec of that MPI "
            "(python -m mpi4py --mpi-lib-version names it), or GRACE_TRANSPORT=gloo with MASTER_ADDR and MASTER_PORT"
        )


def describe_library(mpi: Any) -> str:
    """The name and version of this MPI: ``MPICH Version: 5.0.2``."""
    first = str(mpi.Get_library_version()).replace("\0", "").strip().splitlines()[0]
    return " ".join(first.partition(",")[0].split())
