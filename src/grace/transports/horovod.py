"""Collectives over Horovod 0.28.1, through its torch side: whatever it was built with moves the bytes.

- It matches collectives by name, and caches what was negotiated by name, too: a name says which transport asks for
  what, and recurs in every step.
- It does not sum bfloat16, int8, uint8 and bool: the ranks make such sums, and also sums of float16 and maxima of
  floats. Data that is only moved is bytes to Horovod.
- It does not say who is missing, and has no time-out: texts go over a store that rank 0 keeps, whose address Horovod
  carries; calls are asynchronous, and polled.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import sys
import time
from typing import Any, ClassVar

import torch
import torch.distributed as dist
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
from grace.errors import AbsentError, ConfigurationError, TransportError, out_of_range
from grace.transports.alone import Alone
from grace.transports.meeting import find_store
from grace.transports.reducing import reduce_in_parts_, reduce_rows
from grace.transports.refusing import refuse_unfit
from grace.transports.store import all_gather_over_store

_SUMMED_BY_HOROVOD = (torch.float32, torch.float64, torch.int32, torch.int64)
_ADDRESS_BYTES = 256
_PAUSE_SECONDS = 0.002  # the longest pause between two polls: Horovod's own cycle takes about as long
_LISTEN_SECONDS = 0.5  # between two looks at who has left


class HorovodTransport:
    """A transport over Horovod, which the script has initialized (``hvd.init()``).

    Args:
        process_set: ranks of Horovod, one of them this; None is all.
        seconds: how long a collective waits for the others, > 0.

    Raises:
        ConfigurationError: Horovod is not installed or not initialized, or this rank is not in the process set.
    """

    name = "horovod"
    _told: ClassVar[collections.Counter[Any]] = collections.Counter()  # by process set
    _meetings: ClassVar[dict[Any, _Meeting]] = {}

    def __init__(self, process_set: Any = None, *, seconds: float = 300.0):
        if not (isinstance(seconds, int | float) and seconds > 0):
            raise out_of_range("HorovodTransport", "seconds", seconds, "a number > 0")
        self._hvd = find_horovod()
        self._options = {} if process_set is None else {"process_set": process_set}
        if process_set is not None and not process_set.included():
            raise ConfigurationError(f"rank {self._hvd.rank()} of Horovod is not in {process_set}")
        group = self._hvd if process_set is None else process_set
        self.rank, self.world = int(group.rank()), int(group.size())
        self._ranks = list(range(self.world)) if process_set is None else list(process_set.ranks)
        self.why, self.seconds = "", seconds
        self._place = None if process_set is None else int(process_set.process_set_id)
        self._prefix, self._begun, self._closed = "", 0, False
        self._store: dist.Store | None = None
        self._alone = Alone() if self.world == 1 else None

    def all_gather_text(self, text: str, *, seconds: float) -> list[str]:
        """See :class:`grace.transports.base.Transport`. Until the first tell succeeds, it cannot name missing ranks."""
        if self._closed:
            raise TransportError(f"rank {self.rank} has left the group, and cannot tell anything")
        if self._alone is not None:
            return [text]
        meeting = self._meetings.setdefault(self._place, _Meeting())
        store = meeting.find(self, seconds)
        count = self._told[self._place]
        ended = (f"grace/{count - 1}",) if count else ()
        texts = all_gather_over_store(store, f"grace/{count}", self.rank, self.world, text, seconds, ended)
        self._told[self._place] = count + 1  # only now: a rank that gave up takes the same place when it returns
        if self._store is None:
            self._store, self._prefix = store, f"grace.{self._place}.{count}"
        return texts

    def run(self, op: Collective) -> Tensor:
        """Performs one collective; see :class:`grace.transports.base.Transport`.

        Raises:
            TransportError: what is refused (nothing was sent then), or a collective that failed: a rank has left, or did not
                answer within ``seconds``. Horovod is shut down then, so that the others hear of it.
        """
        if self._closed:
            raise TransportError(f"rank {self.rank} has left the group, and cannot ask for {signature(op)}")
        if self._alone is not None:
            return self._alone.run(op)
        if self._store is None:
            raise TransportError(
                f"rank {self.rank} has no name before its first all_gather_text, and cannot ask for {signature(op)}"
            )
        refuse_unfit(op, self.rank, self.world)
        self._begun += 1
        try:
            return self._run(op, op.buf.detach().contiguous())
        except (
            RuntimeError,
            ValueError,
            TimeoutError,
        ) as error:  # HorovodInternalError; what Horovod refuses; a deadline
            left = "; ".join(self._find_left())
            failure = TransportError(
                f"rank {self.rank} of {self.world}: {signature(op)} failed: {left or f'Horovod says: {error}'}"
            )
            self.close(failure)
            raise failure from error

    def close(self, error: BaseException | None = None) -> None:
        """See :class:`grace.transports.base.Transport`. With an error Horovod is shut down, for the script's own calls, too:
        there is no other way to wake ranks that wait in it.
        """
        if self._closed:
            return
        self._closed = True
        if self._store is not None:
            why = f"{type(error).__name__}: {error}" if error else "it has ended without an error, after fewer steps"
            with contextlib.suppress(RuntimeError):  # the store has gone with its keeper
                self._store.set(f"{self._prefix}/{self.rank}", f"{self._begun}:{why}")
                self._store.add(f"{self._prefix}/left", 1)
        self._store = None
        if error is not None and self._alone is None:
            self._meetings.pop(self._place, None)
            self._hvd.shutdown()

    def _find_left(self) -> list[str]:
        """Ranks that have left without taking part in this rank's current collective, and why."""
        left: list[str] = []
        store = self._store  # read once: another thread may close the transport
        with contextlib.suppress(RuntimeError):
            if store is None or not store.check([f"{self._prefix}/left"]):
                return []
            for other in range(self.world):
                if store.check([key := f"{self._prefix}/{other}"]):
                    begun, _, why = store.get(key).decode().partition(":")
                    if int(begun) < self._begun or "without an error" not in why:
                        left.append(f"rank {other} has left ({why})")
        return left

    def _wait(self, handle: int, seconds: float) -> Any:
        """The result of an asynchronous call."""
        now = time.monotonic()
        deadline, listen, pause = now + seconds, now + _LISTEN_SECONDS, 0.0001
        while not self._hvd.poll(handle):
            now = time.monotonic()
            if now > deadline:
                raise TimeoutError(f"no answer within {seconds:g} s")
            if now > listen:
                if self._find_left():
                    raise RuntimeError("a rank has left")
                listen = now + _LISTEN_SECONDS
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_SECONDS)
        return self._hvd.synchronize(handle)

    def _run(self, op: Collective, buf: Tensor) -> Tensor:
        if isinstance(op, AllReduce):
            out = buf if op.donate or not op.buf.is_contiguous() else buf.clone()
            if op.op == "mean":
                out.mul_(1 / self.world)  # before the sum, so that nothing overflows
            return self._all_reduce(op, out)
        if isinstance(op, ReduceScatter):
            return reduce_rows(self._all_to_all(buf * (1 / self.world) if op.op == "mean" else buf), op.op)
        if isinstance(op, AllGather):
            return self._all_gather(buf)
        if isinstance(op, AllToAll):
            return self._all_to_all(buf)
        if isinstance(op, Broadcast):
            out = buf.clone()
            if out.numel():
                raw = _bytes(out)
                name = self._name(f"broadcast{op.root}", raw)
                self._wait(self._hvd.broadcast_async_(raw, self._ranks[op.root], **name), self.seconds)
            return out
        return self._permute(op, buf)

    def _all_reduce(self, op: AllReduce, out: Tensor) -> Tensor:
        """In place."""
        if not out.numel():
            return out
        if out.dtype in _SUMMED_BY_HOROVOD and not (op.op == "max" and out.is_floating_point()):
            kind, flat = self._hvd.Max if op.op == "max" else self._hvd.Sum, out.view(-1)
            self._wait(self._hvd.allreduce_async_(flat, op=kind, **self._name(op.op, flat)), self.seconds)
            return out
        return reduce_in_parts_(out, op.op, self.world, self._all_to_all, self._all_gather)

    def _all_gather(self, buf: Tensor) -> Tensor:
        if not buf.numel():
            return buf.new_empty(self.world, *buf.shape)
        raw = _bytes(buf)[None]
        rows = self._wait(self._hvd.allgather_async(raw, **self._name("gather", raw)), self.seconds)
        out: Tensor = rows.view(-1).view(buf.dtype).view(self.world, *buf.shape)
        return out

    def _all_to_all(self, buf: Tensor) -> Tensor:
        if not buf.numel():
            return buf.clone()
        splits = torch.full(
            (self.world,), buf.numel() * buf.element_size() // self.world, dtype=torch.int32, device="cpu"
        )
        return self._send("alltoall", _bytes(buf), splits).view(buf.dtype).view(buf.shape)

    def _permute(self, op: Permute, buf: Tensor) -> Tensor:
        """Horovod has no point to point: an all-to-all in which most send nothing."""
        out = torch.zeros_like(buf)
        if not (buf.numel() and op.pairs):
            return out
        raw, splits = _bytes(buf), torch.zeros(self.world, dtype=torch.int32, device="cpu")
        for source, destination in op.pairs:
            if source == self.rank:
                splits[destination] = raw.numel()
        received = self._send(f"permute{raw.numel()}", raw[: int(splits.sum())], splits)
        return received.view(buf.dtype).view(buf.shape) if received.numel() else out

    def _send(self, kind: str, raw: Tensor, splits: Tensor) -> Tensor:
        name = self._name(kind, raw if kind == "alltoall" else None)
        received = self._wait(self._hvd.alltoall_async(raw, splits=splits, **name), self.seconds)
        out: Tensor = received[0] if isinstance(received, tuple) else received
        return out

    def _name(self, kind: str, x: Tensor | None) -> dict[str, Any]:
        shape = "" if x is None else f".{str(x.dtype).removeprefix('torch.')}.{'x'.join(map(str, x.shape))}"
        return {"name": f"{self._prefix}.{kind}{shape}", **self._options}


class _Meeting:
    """The store of the ranks of a process set: rank 0 keeps it, and Horovod carries its address."""

    def __init__(self) -> None:
        self._address = torch.zeros(_ADDRESS_BYTES, dtype=torch.uint8, device="cpu")
        self._handle: int | None = None
        self._kept: dist.Store | None = None  # by rank 0
        self._store: dist.Store | None = None

    def find(self, transport: HorovodTransport, seconds: float) -> dist.Store:
        """The store, at the latest after ``seconds``. A rank that gives up and returns goes on waiting where it was.

        Raises:
            AbsentError: some ranks did not come; Horovod does not say which.
            TransportError: Horovod failed.
        """
        if self._store is not None:
            return self._store

        def wait() -> None:
            assert self._handle is not None
            transport._wait(self._handle, seconds)

        def share(text: str) -> str:
            if self._handle is None:
                self._address[:] = torch.tensor(
                    list(text.encode().ljust(_ADDRESS_BYTES)), dtype=torch.uint8, device="cpu"
                )
                options = {"name": f"grace.{transport._place}.address", **transport._options}
                self._handle = transport._hvd.broadcast_async_(self._address, transport._ranks[0], **options)
            if transport.rank:
                wait()
            return bytes(self._address.tolist()).decode().rstrip()

        try:
            if transport.rank == 0:
                self._kept = self._kept or find_store(0, transport.world, share)
                wait()
            self._store = self._kept or find_store(transport.rank, transport.world, share)
        except TimeoutError as error:
            raise AbsentError([], f"some ranks did not come within {seconds:.0f} s of rank {transport.rank}") from error
        except RuntimeError as error:
            raise TransportError(f"rank {transport.rank}: Horovod failed at the start. It says: {error}") from error
        return self._store


def find_horovod() -> Any:
    """``horovod.torch``, initialized.

    Raises:
        ConfigurationError: it is not installed, is only a stand-in, or has not been initialized.
    """
    try:
        hvd = importlib.import_module("horovod.torch")
    except ImportError as error:
        raise ConfigurationError(
            f"the transport 'horovod' needs Horovod with its torch side ({error}). It has no release for today's torch: the "
            "page on Horovod says how to build it. Without it, mpirun and torchrun do"
        ) from error
    if hasattr(hvd, "stands_in"):
        raise ConfigurationError(
            "this horovod is Grace's stand-in, which has no transport of its own; use transport='auto', which finds what it "
            "runs over"
        )
    on_tensorflow = sys.modules.get("horovod.tensorflow")
    if not hvd.is_initialized():
        if on_tensorflow is None or not on_tensorflow.is_initialized():
            raise ConfigurationError("Horovod is not initialized; call hvd.init() first, on all ranks")
        hvd.init()  # each of Horovod's sides is a library of its own
    return hvd


def _bytes(x: Tensor) -> Tensor:
    return x.view(-1).view(torch.uint8)
