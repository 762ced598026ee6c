"""Collectives over ``torch.distributed``: gloo on the CPU, NCCL on GPUs.

The pitfalls of that platform are dealt with here, and nowhere else:

- gloo's threads can abort the interpreter at exit, after a run that succeeded: a short sleep at exit lets them drop
  their last work while the interpreter is still alive (:func:`guard_exit`).
- torch 2.6 and 2.7 destroy a group with the interpreter's lock held, and wait for gloo's threads, which need that lock to
  let go of a tensor: they get only views made for them, and no group is destroyed before these are gone
  (:meth:`TorchDistributed.close`).
- gloo sums in a reduce-scatter there, whatever it is asked for: a maximum goes another way.
- a collective that gloo refuses on one rank poisons the group for all: dtypes and operations are checked before
  anything is sent (:meth:`TorchDistributed.run`).
- gloo takes CUDA tensors in some collectives only: they all go through the host (:func:`through_host`).
- NCCL waits for both ends of a message before the next: those of a permutation are given to it at once. It reports failures
  when it likes, and a rank that leaves must abort what it waits for (:func:`abort`). It has no booleans: they travel as bytes.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import dataclasses
import functools
import os
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Literal

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
    ReduceOp,
    ReduceScatter,
    signature,
)
from grace.environment import warn_one_queue
from grace.errors import TransportError
from grace.transports.refusing import DEVICES, refuse_unfit
from grace.transports.store import all_gather_over_store

_EXIT_SECONDS = 0.05
_RELEASE_SECONDS = 0.5  # a thread that still waits for another rank never lets go
_LENT = 8  # views: two threads of gloo, two collectives each, two tensors each
_OPS: dict[ReduceOp, dist.ReduceOp.RedOpType] = {
    "sum": dist.ReduceOp.SUM, "mean": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX,
}  # fmt: skip
# torch 2.13 renamed these two, and warns about the old names
_all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_multiplied_sum: Callable[[float], Any] | None = getattr(dist, "_make_nccl_premul_sum", None)


@functools.lru_cache(maxsize=1)
def guard_exit() -> None:
    """Sleeps for a moment when the interpreter exits; see the top of this file."""
    atexit.register(time.sleep, _EXIT_SECONDS)


def through_host(op: Collective, run: Callable[[Collective], Tensor]) -> Tensor:
    """Runs a collective of an accelerator's tensors on copies in the host's memory; the host waits for them."""
    device = op.buf.device
    into = getattr(op, "into", None)
    changed: dict[str, Any] = {"buf": op.buf.cpu()}
    if isinstance(op, AllGather):
        changed["into"] = None
    if isinstance(op, AllReduce):
        changed["donate"] = True
    answer = run(dataclasses.replace(op, **changed))
    return answer.to(device) if into is None else into.copy_(answer)


def abort(group: Any) -> None:
    """Ends all that NCCL does in this group, on this rank: what waits for other ranks fails at once. From torch 2.6 on; before
    that the group is only destroyed.
    """
    end = getattr(dist.distributed_c10d, "_abort_process_group", None)
    with contextlib.suppress(RuntimeError, ValueError, AssertionError):
        if end is not None and group is not dist.group.WORLD:
            end(group)
        elif hasattr(group, "abort"):
            group.abort()


def name_attempt() -> str:
    """A prefix for keys of this attempt, where a store outlives attempts: the one that torchrun's agent keeps."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return ""
    return f"attempt{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


class TorchDistributed:
    """A transport over one process group.

    Args:
        group: the group; None is the default group. The transport takes it over, and :meth:`close` destroys it, unless
            it is the default group and there was no error.
    """

    _told: ClassVar[collections.Counter[tuple[int, ...]]] = (
        collections.Counter()
    )  # by ranks: not every rank is in every group

    def __init__(self, group: dist.ProcessGroup | None = None):
        guard_exit()
        self.group = group if group is not None else dist.group.WORLD
        self._home = self.group  # this transport uses its store
        self.rank, self.world = dist.get_rank(self.group), dist.get_world_size(self.group)
        self._backend = dist.get_backend(self.group)
        self._ranks = tuple(dist.get_process_group_ranks(self.group))
        self._closed = False
        self._lent: collections.deque[weakref.ref[Tensor]] = collections.deque(maxlen=_LENT)
        self.why = ""

    @property
    def name(self) -> str:
        """The backend: gloo, nccl."""
        return str(self._backend)

    @property
    def seconds(self) -> float | None:
        """The group's time-out: how long a collective waits for a rank; None where torch does not say."""
        timeout = _get_timeout(self._home)
        return None if timeout is None else float(timeout.total_seconds())

    @classmethod
    def of_same_ranks(cls, group: dist.ProcessGroup | None = None) -> TorchDistributed:
        """A transport over the same ranks, with a process group of its own of the same backend and time-out. The first
        :meth:`all_gather_text` makes that group, once all ranks are there and able to; until then there is only the store.
        """
        transport = cls(group)
        transport.group = None
        return transport

    @classmethod
    def among(cls, ranks: Sequence[int], group: dist.ProcessGroup | None = None) -> TorchDistributed:
        """As :meth:`of_same_ranks`, over some ranks of the group, given by their places in it; this rank is one of them."""
        transport = cls.of_same_ranks(group)
        transport.rank, transport.world = list(ranks).index(transport.rank), len(ranks)
        transport._ranks = tuple(transport._ranks[rank] for rank in ranks)
        return transport

    @classmethod
    def forget(cls) -> None:
        """The default process group is another one, with a store of its own, in which nobody has told anything yet."""
        cls._told.clear()

    def split(self, ranks: Sequence[int]) -> TorchDistributed:
        """A transport between some of its ranks, this one among them; see :meth:`among`."""
        return type(self).among(ranks, self._home)

    def all_gather_text(self, text: str, *, seconds: float) -> list[str]:
        """See :class:`grace.transports.base.Transport`. It goes through the group's store."""
        home = self._home
        if self._closed or home is None:
            raise TransportError(f"rank {self.rank} has left the group, and cannot tell anything")
        count = self._told[self._ranks]
        some = "" if len(self._ranks) == dist.get_world_size(home) else f"/{'-'.join(map(str, self._ranks))}"
        store, prefix = _get_store(home), f"grace/{name_attempt()}{some}"
        place, before = f"{prefix}/{count}", f"{prefix}/{count - 1}"
        ended = (before, f"{before}/group") if count else ()
        texts = all_gather_over_store(store, place, self.rank, self.world, text, seconds, ended)
        self._told[self._ranks] = count + 1  # only now: a rank that gave up takes the same place when it returns
        if self.group is None:
            self.group = _make_group(home, self._ranks, f"{name_attempt()}{count}")
            # A rank that hears bad news may leave at once, and break connections that others are still making.
            all_gather_over_store(store, f"{place}/group", self.rank, self.world, "made", seconds)
        return texts

    def close(self, error: BaseException | None = None) -> None:
        """See :class:`grace.transports.base.Transport`. The group's connections close, so that ranks that wait for this
        one hear of it: gloo closes them with the last reference to the group, and the frames of ``error`` may hold one.
        """
        seen = set()
        cause = error
        while cause is not None and id(cause) not in seen:
            seen.add(id(cause))
            traceback.clear_frames(cause.__traceback__)
            cause = cause.__cause__ or cause.__context__
        self._closed = True  # first: whoever finds no group then knows why
        group, self.group, self._home = self.group, None, None
        if group is not None and (error is not None or group is not dist.group.WORLD):
            until = time.monotonic() + _RELEASE_SECONDS
            while any(view() is not None for view in tuple(self._lent)) and time.monotonic() < until:
                time.sleep(1e-4)
            if error is not None and self._backend == "nccl":
                abort(group)
            with contextlib.suppress(RuntimeError, ValueError, AssertionError):
                dist.destroy_process_group(group)

    def run(self, op: Collective) -> Tensor:
        """Performs one collective; see :class:`grace.transports.base.Transport`.

        Raises:
            TransportError: a dtype or operation that the backend refuses (nothing was sent then), or a collective that
                failed: a worker has died, or the group's time-out has passed.
        """
        # Read once: another thread may close the transport meanwhile, and torch takes None for the default group.
        group = self.group
        if self._closed:
            raise TransportError(f"rank {self.rank} has left the group, and cannot ask for {signature(op)}")
        if group is None:
            raise TransportError(
                f"rank {self.rank} has no group before its first all_gather_text, and cannot ask for {signature(op)}"
            )
        refuse_unfit(op, self.rank, self.world, DEVICES.get(str(self._backend), ()))
        try:
            if op.buf.device.type != "cpu" and self._backend == "gloo":
                return through_host(op, lambda staged: self._run(staged, group))
            if op.buf.dtype == torch.bool and self._backend == "nccl":
                return self._run(_as_bytes(op), group).view(torch.bool)
            return self._run(op, group)
        except (RuntimeError, ValueError) as error:  # no narrower class; ValueError: a destroyed group
            raise TransportError(
                f"rank {self.rank} of {self.world}: {signature(op)} failed. A worker has died, or has left because it made "
                f"fewer steps than this one, or did not answer within the process group's time-out. The backend says: {error}"
            ) from error

    def _run(self, op: Collective, group: dist.ProcessGroup) -> Tensor:
        buf = op.buf.contiguous()
        if isinstance(op, AllReduce):
            out = buf if op.donate else buf.clone()
            if self.world > 1 and out.numel():
                if (how := self._reduction(op.op, buf.dtype)) is None:
                    out.mul_(
                        1 / self.world
                    )  # as DistributedDataParallel does: before the sum, so that nothing overflows
                dist.all_reduce(self._lend(out.view(-1)), how or _OPS[op.op], group=group)
            return out
        if self.world == 1 and not isinstance(op, Permute):
            if isinstance(op, AllGather):
                return buf.clone()[None] if op.into is None else op.into.copy_(buf)
            return buf.clone() if isinstance(op, AllToAll | Broadcast) else buf[0].clone()
        if isinstance(op, AllGather):
            out = buf.new_empty(self.world, *buf.shape) if op.into is None else op.into
            _all_gather(self._lend(out), self._lend(buf), group=group)
            return out
        if isinstance(op, AllToAll):
            out = torch.empty_like(buf)
            dist.all_to_all_single(self._lend(out), self._lend(buf), group=group)
            return out
        if isinstance(op, ReduceScatter) and op.op == "max" and self._backend != "nccl":
            rows = torch.empty_like(buf)
            dist.all_to_all_single(self._lend(rows), self._lend(buf), group=group)
            return rows.amax(0)
        if isinstance(op, ReduceScatter):
            how = self._reduction(op.op, buf.dtype)
            rows = buf * (1 / self.world) if how is None else buf
            out = buf.new_empty(buf.shape[1:])
            _reduce_scatter(self._lend(out), self._lend(rows), how or _OPS[op.op], group=group)
            return out
        if isinstance(op, Broadcast):
            out = buf.clone() if self.rank == op.root else torch.empty_like(buf)
            dist.broadcast(self._lend(out), dist.get_global_rank(group, op.root), group=group)
            return out
        return self._permute(op, buf, group)

    def _reduction(self, op: Literal["sum", "mean", "max"], dtype: torch.dtype) -> Any:
        """The reduction of torch's: of a mean one that multiplies by 1/W as it reads, where NCCL has it for this dtype, which
        saves a pass; None: who calls multiplies. Factors of narrower dtypes are rounded to them there, which 1/W need not be.
        """
        if op != "mean":
            return _OPS[op]
        exact = dtype in (torch.float32, torch.float64) and self._backend == "nccl"
        return _multiplied_sum(1 / self.world) if exact and _multiplied_sum is not None else None

    def _permute(self, op: Permute, buf: Tensor, group: dist.ProcessGroup) -> Tensor:
        out = torch.zeros_like(buf)
        works: list[Any] = []
        if self._backend == "nccl":
            works = self._batch(op, buf, out, group)
            op = dataclasses.replace(op, pairs=())
        for source, destination in op.pairs:
            if source == destination == self.rank:
                out.copy_(buf)
            elif source == self.rank:
                works.append(dist.isend(self._lend(buf), dist.get_global_rank(group, destination), group=group))
            elif destination == self.rank:
                works.append(dist.irecv(self._lend(out), dist.get_global_rank(group, source), group=group))
        for work in works:
            if work is not None:
                work.wait()
        return out

    def _batch(self, op: Permute, buf: Tensor, out: Tensor, group: dist.ProcessGroup) -> list[Any]:
        """A permutation's messages of this rank, all at once."""
        messages = []
        for source, destination in op.pairs:
            if source == destination == self.rank:
                out.copy_(buf)
            elif source == self.rank:
                messages.append(
                    dist.P2POp(dist.isend, self._lend(buf), dist.get_global_rank(group, destination), group=group)
                )
            elif destination == self.rank:
                messages.append(
                    dist.P2POp(dist.irecv, self._lend(out), dist.get_global_rank(group, source), group=group)
                )
        return list(dist.batch_isend_irecv(messages)) if messages else []

    def _lend(self, x: Tensor) -> Tensor:
        """A view in one row, which nobody else holds."""
        view = x.view(-1)
        self._lent.append(weakref.ref(view))
        return view


def _as_bytes(op: Collective) -> Collective:
    changed: dict[str, Any] = {"buf": op.buf.view(torch.uint8)}
    if isinstance(op, AllGather) and op.into is not None:
        changed["into"] = op.into.view(torch.uint8)
    return dataclasses.replace(op, **changed)


def _get_store(group: Any) -> dist.Store:
    if hasattr(group, "get_group_store"):
        store: dist.Store = group.get_group_store()
        return store
    return dist.distributed_c10d._get_process_group_store(group)  # from before torch had a public name for it


def _get_timeout(group: Any) -> Any:
    """Time limit of a group, a timedelta; None where torch does not say."""
    try:
        return group._get_backend(torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")).options._timeout
    except (AttributeError, RuntimeError):
        return None


def _make_group(group: Any, ranks: Sequence[int], which: str) -> Any:
    """A new process group over these ranks, with the same backend and time-out; ``which`` tells it from others of the same
    ranks.
    """
    everyone = len(ranks) == dist.get_world_size()
    backend, timeout = dist.get_backend(group), _get_timeout(group)
    if backend == "nccl":
        warn_one_queue()
    options = {"pg_options": _prefer(timeout)} if backend == "nccl" else {}
    with contextlib.nullcontext() if everyone else _apart(f"grace_{'-'.join(map(str, ranks))}_{which}"):
        return dist.new_group(
            list(ranks),
            timeout=timeout,
            backend=backend,
            use_local_synchronization=not everyone,
            group_desc="grace",
            **options,
        )


def _prefer(timeout: Any) -> Any:
    """Options of a group over NCCL whose stream has a high priority, as the lane's: others wait for what is exchanged; None
    where torch has none.
    """
    kind = getattr(dist, "ProcessGroupNCCL", None)
    if kind is None:
        return None
    options = kind.Options(is_high_priority_stream=True)
    if timeout is not None:
        options._timeout = timeout
    return options


@contextlib.contextmanager
def _apart(name: str) -> Iterator[None]:
    """Groups of some ranks made in the meantime need no other rank: they have this name, which is where in the store their
    addresses are, and a communicator of their own.

    Torch names a group of some ranks after them and after how many groups this process has at the moment. Processes need not
    agree on that, and wait for each other then at different places; or the name comes again after a group has gone, whose
    addresses are found there. And where the default group is bound to a device, torch would split NCCL's communicator, which
    all its ranks must enter: those of the group would wait for the others without end.
    """
    module: Any = dist.distributed_c10d
    changed = {
        "_process_group_name": lambda *_args, **_kwargs: name,
        "_get_split_source": lambda *_args, **_kwargs: None,
    }
    torchs = {key: getattr(module, key) for key in changed if hasattr(module, key)}
    for key in torchs:
        setattr(module, key, changed[key])
    try:
        yield
    finally:
        for key, value in torchs.items():
            setattr(module, key, value)
