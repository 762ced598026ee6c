"""Per-step membership by torchft: its manager says who takes part in a step, and whether it counts; Grace exchanges.

torchft is not imported here: what is used of its manager and its process group is in :class:`Manager` and the calls of
:class:`GroupTransport`.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from grace.collectives import AllGather, AllReduce, AllToAll, Broadcast, Collective, Permute, ReduceScatter, signature
from grace.contract.method import Method
from grace.errors import ConfigurationError, GraceError, TransportError
from grace.registry.policy import Policy
from grace.run.elastic import Elastic, Regrouped
from grace.run.options import DEFAULTS, Options
from grace.run.session import Session
from grace.transports.alone import Alone
from grace.transports.refusing import refuse_unfit

_AllGatherOptions: Any = dist.distributed_c10d.AllgatherOptions  # torch.distributed does not name it
_OPS = {"sum": dist.ReduceOp.SUM, "mean": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


class Manager(Protocol):
    """The part of ``torchft.Manager`` that is used."""

    def wait_quorum(self) -> None: ...
    def participating_rank(self) -> int | None: ...
    def num_participants(self) -> int: ...
    def current_step(self) -> int: ...
    def errored(self) -> Any: ...
    def report_error(self, e: Exception) -> None: ...
    def should_commit(self) -> bool: ...


class GroupTransport:
    """A transport over one of torchft's process groups, as its manager has configured it: until it does so again.

    Args:
        group: torchft's; only its collectives are called.
        rank, world: of this replica among those of the step.
        timeout: of a collective, in seconds.
    """

    name = "torchft"

    def __init__(self, group: Any, rank: int, world: int, timeout: float = 60.0):
        self.group, self.rank, self.world = group, rank, world
        self._timeout = datetime.timedelta(seconds=timeout)
        self._closed = False

    def run(self, op: Collective) -> Tensor:
        """See :class:`grace.transports.base.Transport`."""
        refuse_unfit(op, self.rank, self.world)
        if self._closed:
            raise TransportError(f"rank {self.rank} has left the group, and cannot ask for {signature(op)}")
        try:
            return self._run(op)
        except (RuntimeError, ValueError) as error:
            raise TransportError(
                f"rank {self.rank} of {self.world}: {signature(op)} failed: a replica has died, or did not answer. "
                f"torchft says: {error}"
            ) from error

    def _run(self, op: Collective) -> Tensor:
        buf = op.buf.contiguous()
        if isinstance(op, AllReduce | ReduceScatter):
            out = buf * (1 / self.world) if op.op == "mean" else buf.clone()
            options: Any = dist.AllreduceOptions()
            options.reduceOp = _OPS[op.op]
            self._wait(self.group.allreduce([out.view(-1)], options))
            return out if isinstance(op, AllReduce) else out[self.rank].clone()
        if isinstance(op, Broadcast):
            out, whose = buf.clone(), dist.BroadcastOptions()
            whose.rootRank, whose.rootTensor = op.root, 0
            self._wait(self.group.broadcast([out], whose))
            return out
        rows = self._gather(buf)
        if isinstance(op, AllGather):
            return rows if op.into is None else op.into.copy_(rows.view(op.into.shape))
        if isinstance(op, AllToAll):
            return rows[:, self.rank].contiguous()
        assert isinstance(op, Permute)
        source = {destination: origin for origin, destination in op.pairs}
        return rows[source[self.rank]].clone() if self.rank in source else torch.zeros_like(buf)

    def _gather(self, buf: Tensor) -> Tensor:
        """``[W, ...]``."""
        out = [torch.empty_like(buf) for _ in range(self.world)]
        self._wait(self.group.allgather([out], [buf], _AllGatherOptions()))
        return torch.stack(out)

    def _wait(self, work: Any) -> None:
        work.wait(self._timeout)

    def all_gather_text(self, text: str, *, seconds: float) -> list[str]:
        """See :class:`grace.transports.base.Transport`. There is no store that outlives replicas: it takes two collectives."""
        encoded = text.encode()
        sizes = self.run(AllGather(torch.tensor([len(encoded)], dtype=torch.int64, device="cpu"))).view(-1).tolist()
        room = torch.zeros(max(sizes), dtype=torch.uint8, device="cpu")
        room[: len(encoded)] = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
        rows = self.run(AllGather(room))
        return [rows[rank, :size].numpy().tobytes().decode() for rank, size in enumerate(sizes)]

    def close(self, error: BaseException | None = None) -> None:
        """See :class:`grace.transports.base.Transport`: the group is the manager's, which configures it anew."""
        self._closed = True


class FaultTolerant:
    """Averages gradients among the replicas of torchft's quorum by a method of Grace's, in place of ``manager.allreduce``.

    Args:
        manager: torchft's, made with ``use_async_quorum=False``: a replica that heals has healed before its forward pass.
        group: the process group that the manager was made with.
        like: a tensor for each name that is exchanged; only its shape and dtype count.
        method: a method, the string that makes it, or a policy.
        options: how to exchange.
        timeout: of a collective, in seconds.

    A step, where replicas may have come or gone before::

        manager.start_quorum()
        loss(batch).backward()
        means = ft.exchange({name: p.grad for name, p in model.named_parameters()})
        if ft.should_commit():  # asks the manager's
            ...                 # put the means into .grad, and step

    What replicas owe follows :mod:`grace.run.elastic`: who stays scales it, who is lost takes it along, who heals owes
    nothing.
    A step that should not be committed is undone. ``last`` is what the last change of the quorum brought; print it.

    Raises:
        ConfigurationError: a manager or a group that lacks what is needed.
    """

    def __init__(
        self,
        manager: Manager,
        group: Any,
        like: Mapping[str, Tensor],
        method: Policy | Method[Any] | str,
        options: Options = DEFAULTS,
        *,
        timeout: float = 60.0,
    ):
        needed = [name for name in vars(Manager) if not name.startswith("_")]
        if absent := [name for name in needed if not callable(getattr(manager, name, None))]:
            raise ConfigurationError(f"{type(manager).__name__} lacks {', '.join(absent)}; give a torchft.Manager")
        if getattr(manager, "_use_async_quorum", False):
            raise ConfigurationError(
                "the manager computes its quorum beside the forward pass, and a replica that heals would exchange what its "
                "old model says; make it with torchft.Manager(..., use_async_quorum=False)"
            )
        self.manager, self.group, self._timeout = manager, group, timeout
        self.elastic = Elastic(Session(like, method, Alone(), options))
        self.last: Regrouped | None = None
        self._changed = True
        self._watch(group)

    def _watch(self, group: Any) -> None:
        """Hears of it when the manager configures the group: then others take part."""
        names = [name for name in ("configure", "reconfigure") if callable(getattr(group, name, None))]
        if not names:
            raise ConfigurationError(f"{type(group).__name__} cannot be configured anew; give torchft's process group")
        for name in names:
            own = getattr(group, name)

            def configure(*args: Any, own: Any = own, **kwargs: Any) -> Any:
                self._changed = True
                return own(*args, **kwargs)

            setattr(group, name, configure)

    def exchange(self, tensors: Mapping[str, Tensor], *, lr: float | None = None) -> dict[str, Tensor]:
        """The tensors of this replica -> the means, valid until the next call. Call it between ``start_quorum`` and
        :meth:`should_commit`.

        If it fails, or the replica is not where the manager is, the manager hears of it, so that the step is not committed,
        and the tensors come back: it raises nothing that torchft lives through.
        """
        manager, session = self.manager, self.elastic.session
        manager.wait_quorum()
        if manager.errored() is not None:
            return dict(tensors)
        try:
            rank = manager.participating_rank()
            if rank is None:
                raise TransportError("this replica does not take part in the step")
            if self._changed or session.error is not None:
                self.last = self.elastic.regroup(
                    GroupTransport(self.group, rank, manager.num_participants(), self._timeout)
                )
                self._changed = False
            if session.worker.step != manager.current_step():
                raise TransportError(
                    f"Grace is at step {session.worker.step} and the manager at {manager.current_step()}: another quorum"
                )
            return self.elastic.exchange(tensors, lr=lr)
        except GraceError as error:
            self._changed = True
            manager.report_error(error)
            return dict(tensors)

    def should_commit(self) -> bool:
        """The manager's decision. If the step counts, so does its exchange; else that is undone, unless another replica is
        found to have committed it.
        """
        if not self.manager.should_commit():
            return False
        self.elastic.commit()
        return True
