"""The one line for ``DistributedDataParallel``: ``grace.attach(ddp_model, "topk:ratio=0.01")``.

A communication hook hands each bucket of gradients to a lane, one first-in-first-out thread with a process group of its
own, so that exchanges overlap with the backward pass and keep their order on all ranks. On a GPU the exchange is
enqueued on the current stream instead.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from grace.adapters.groups import Granularity, Group, carried, grouped
from grace.adapters.ranks import fingerprint, now
from grace.errors import ConfigurationError, GraceError, InputError, NonFiniteError, StateError
from grace.method import Method
from grace.policy import Policy
from grace.run.drive import drive
from grace.run.lane import Lane
from grace.run.stats import Stats
from grace.run.worker import NonFinite, Worker, checked_tensor
from grace.transports.agreement import agree
from grace.transports.checked import Checked
from grace.transports.timed import Timed
from grace.transports.torch_distributed import TorchDistributed
from grace.transports.traced import Tracer


class _Hook:
    """The hook of one model. DistributedDataParallel takes a hook only once, and keeps it: this one stays, and hands
    buckets to whichever handle is attached, or sums them as DistributedDataParallel would.
    """

    of: ClassVar[weakref.WeakKeyDictionary[DistributedDataParallel, _Hook]] = weakref.WeakKeyDictionary()

    def __init__(self, model: DistributedDataParallel):
        self.handle: Handle | None = None
        self.group = model.process_group
        self.world = dist.get_world_size(self.group)

    @classmethod
    def on(cls, model: DistributedDataParallel) -> _Hook:
        """The hook of this model, registered if need be."""
        hook = cls.of.get(model)
        if hook is None:
            hook = cls(model)
            try:
                model.register_comm_hook(hook, _call)
            except RuntimeError as error:
                raise ConfigurationError(f"this model already has a communication hook of its own: {error}") from error
            cls.of[model] = hook
        return hook

    def run(self, bucket: GradBucket) -> Future[Tensor]:
        """One bucket."""
        if self.handle is not None:
            return self.handle._accept(bucket)
        work = dist.all_reduce(bucket.buffer().mul_(1 / self.world), group=self.group, async_op=True)
        assert work is not None
        future: Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
        return future


def _call(hook: _Hook, bucket: GradBucket) -> Future[Tensor]:
    """Torch insists on a parameter that is named ``bucket`` and annotated so."""
    return hook.run(bucket)


_call.__annotations__ = {"bucket": GradBucket, "return": Future[Tensor]}  # torch compares objects, not strings


class _Ticket:
    """A bucket that waits for its groups."""

    def __init__(self, buffer: Tensor, waiting: set[str]):
        self.buffer, self.waiting = buffer, waiting
        devices: list[int | str | torch.device] | None = [buffer.device] if buffer.is_cuda else None
        self.future: Future[Tensor] = Future(devices=devices)


class Handle:
    """Grace at work on one model. Made by :func:`attach`; all ranks call its methods alike."""

    def __init__(
        self,
        model: DistributedDataParallel,
        method: Policy | Method[Any] | str,
        *,
        granularity: Granularity = "parameter",
        seed: int = 0,
        nonfinite: NonFinite = "propagate",
        check: bool = False,
        optimizer: torch.optim.Optimizer | None = None,
        steps_per_epoch: int | None = None,
    ):
        if not isinstance(model, DistributedDataParallel):
            raise ConfigurationError(
                f"attach takes a DistributedDataParallel model, got {type(model).__name__}; "
                "wrap it: grace.attach(DistributedDataParallel(model), ...)"
            )
        self._parameters = {name: p for name, p in model.module.named_parameters() if p.requires_grad}
        self._names = {p: name for name, p in self._parameters.items()}
        for name, p in self._parameters.items():
            checked_tensor(name, p)
        self._hook = _Hook.on(model)
        if self._hook.handle is not None:
            raise ConfigurationError("Grace is attached to this model; use handle.switch(...) or handle.detach() first")
        self._granularity, self._nonfinite, self._check, self._seed = granularity, nonfinite, check, seed
        self._optimizer, self._steps_per_epoch = optimizer, steps_per_epoch
        self._bucket_bytes = int(model.bucket_bytes_cap)
        policy = Policy.of(method)
        self._groups, group_policy = grouped(self._parameters, policy, granularity, self._bucket_bytes)
        self._network = transport = TorchDistributed.beside(model.process_group)
        try:
            self._agree(policy)
        except BaseException:
            transport.close()
            raise
        device = next(iter(self._parameters.values())).device
        self._transport = Timed(Checked(transport) if check else transport)
        self.rank, self.world = transport.rank, transport.world
        self._worker = Worker(
            group_policy, self.rank, self.world, seed=seed, nonfinite=nonfinite, steps_per_epoch=steps_per_epoch
        )
        self._tracer = Tracer(self.rank, self.world)
        self._lane = None if device.type == "cuda" else Lane("grace-exchange")
        self._error: BaseException | None = None
        self._arrived: dict[str, Tensor] = {}  # gradients of groups that are not complete
        self._tickets: list[_Ticket] = []
        self._watching = False
        self._group_of = {member: group for group in self._groups for member in group.members}
        self.stats = Stats(self.world, collectives=self._transport.collectives)
        self._hook.handle = self

    def _agree(self, policy: Policy) -> None:
        """All ranks compare everything that must not differ."""
        knobs = ("granularity", "seed", "nonfinite", "check", "steps_per_epoch")
        agree(fingerprint(policy, self._parameters, {k: getattr(self, f"_{k}") for k in knobs}), self._network)

    # ---- during the backward pass -----------------------------------------------------------------------------------
    def _accept(self, bucket: GradBucket) -> Future[Tensor]:
        """Takes a bucket of gradients; the future holds the buffer once the means are in it."""
        if not self._watching:
            self._watching = True
            if self._optimizer is not None:
                self.lr = float(self._optimizer.param_groups[0]["lr"])
            _at_the_end_of_backward(self._surface)
        buffer = bucket.buffer()
        members = [self._names[p] for p in bucket.parameters()]
        ticket = _Ticket(buffer, {self._group_of[name].name for name in members})
        if buffer.is_sparse:
            names = ", ".join(map(repr, members))
            self._fail(InputError(f"the gradient of {names} is sparse; make the layer with sparse=False"))
        ready = []
        for name, gradient in zip(members, [] if buffer.is_sparse else bucket.gradients(), strict=False):
            self._arrived[name] = gradient
            group = self._group_of[name]
            if all(member in self._arrived for member in group.members):
                ready.append((group, {member: self._arrived.pop(member) for member in group.members}))
        last = bucket.is_last()
        if self._lane is None:
            self._job(ticket, ready, last)
        else:
            self._lane.submit(lambda: self._job(ticket, ready, last))
        return ticket.future

    def _job(self, ticket: _Ticket, ready: list[tuple[Group, dict[str, Tensor]]], last: bool) -> None:
        """Exchanges what has become complete. Runs in the lane; an error is kept for the user's thread."""
        self._tickets.append(ticket)  # here, so that only the lane's thread touches the list
        try:
            if self._error is None and ready:
                self._exchange(ready)
        except BaseException as error:
            self._fail(error)
        done = {group.name for group, _ in ready}
        for ticket in self._tickets:
            ticket.waiting -= done
        finished = [t for t in self._tickets if last or self._error is not None or not t.waiting]
        self._tickets = [t for t in self._tickets if t not in finished]
        if last:
            self._worker.advance()
            self.stats.steps += 1
        for ticket in finished:
            ticket.future.set_result(ticket.buffer)

    def _exchange(self, ready: list[tuple[Group, dict[str, Tensor]]]) -> None:
        stats, worker, start = self.stats, self._worker, now(self._transport)
        tensors = {}
        for group, parts in ready:
            if len(parts) == 1:
                tensors[group.name] = parts[group.members[0]]
            else:
                like = parts[group.members[0]]
                flat = worker.workspace.take(sum(group.sizes), like.dtype, like.device)
                tensors[group.name] = torch.cat([parts[name].reshape(-1) for name in group.members], out=flat)
            stats.dense_bytes += tensors[group.name].numel() * tensors[group.name].element_size()
        outs = drive(self._tracer.trace(worker.exchange(tensors)), self._transport)
        for group, parts in ready:
            out = outs[group.name]
            stats.nonfinite += not out.finite
            for name, mean in group.split(out.mean).items():
                if mean.data_ptr() != parts[name].data_ptr():
                    parts[name].copy_(mean)
        worker.workspace.reset()
        stats.traffic = self._tracer.traffic
        end = now(self._transport)
        stats.exchange_seconds += end[1] - start[1]
        stats.codec_seconds += (end[0] - start[0]) - (end[1] - start[1])
        stats.cpu_seconds += end[2] - start[2]

    # ---- errors -----------------------------------------------------------------------------------------------------
    def _fail(self, error: BaseException) -> None:
        """Keeps the first error, and leaves the group, so that ranks that wait for this one hear of it."""
        if self._error is None:
            self._error = error
            if not isinstance(error, NonFiniteError):  # all ranks have found that one, in step
                self._network.close(error)

    def _surface(self) -> None:
        """Runs when the backward pass ends. DistributedDataParallel waits for its buckets in a callback that was
        queued later than this one: the error must come after that.
        """
        _at_the_end_of_backward(self._raise)

    def _raise(self) -> None:
        self._watching = False
        error = self._error
        if isinstance(error, NonFiniteError):
            self._error = None  # the next step may be finite
        if error is not None:
            raise error

    # ---- for the user -----------------------------------------------------------------------------------------------
    @property
    def lr(self) -> float | None:
        """The learning rate of the coming step, the same on all ranks, for memories that follow it. Set it before each
        backward pass, or attach with ``optimizer=``.
        """
        return self._worker.lr

    @lr.setter
    def lr(self, lr: float | None) -> None:
        self._worker.lr = lr

    def switch(self, method: Policy | Method[Any] | str) -> None:
        """From the next step on another method or policy. What memories owe is added to the next gradients.

        Raises:
            FingerprintMismatch: the ranks switch to different methods.
        """
        self._open()
        policy = Policy.of(method)
        groups, group_policy = grouped(self._parameters, policy, self._granularity, self._bucket_bytes)
        self._agree(policy)
        if groups == self._groups:
            self._worker.switch(group_policy)
        else:
            owed = carried(self._worker.settle(), self._groups, groups)
            self._worker.switch(group_policy)
            self._worker.owe(owed)
        self._groups = groups
        self._group_of = {member: group for group in groups for member in group.members}

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on. Each rank saves and loads its own."""
        groups = {group.name: list(group.members) for group in self._groups}
        return {**self._worker.state_dict(), "granularity": self._granularity, "groups": groups}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Goes on where ``saved`` stopped, under the same method, model and number of workers.

        Raises:
            StateError: it does not fit; nothing has changed then.
        """
        groups = {group.name: list(group.members) for group in self._groups}
        if saved.get("groups") != groups:
            raise StateError(
                f"the state was saved with granularity={saved.get('granularity')!r} and other groups of parameters; "
                f"this is granularity={self._granularity!r}"
            )
        self._worker.load_state_dict(saved, {group.name: group.like(self._parameters) for group in self._groups})

    def detach(self) -> None:
        """The model goes on without compression, as DistributedDataParallel alone would."""
        if self._hook.handle is not self:
            return
        self._hook.handle = None
        if self._lane is not None:
            self._lane.close()
        self._network.close()

    def _open(self) -> None:
        if self._hook.handle is not self:
            raise GraceError("this handle is detached; attach again")

    def __repr__(self) -> str:
        return f"<grace.Handle rank {self.rank} of {self.world}: {self._worker.policy}>"


def attach(
    model: DistributedDataParallel,
    method: Policy | Method[Any] | str,
    *,
    granularity: Granularity = "parameter",
    seed: int = 0,
    nonfinite: NonFinite = "propagate",
    check: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
    steps_per_epoch: int | None = None,
) -> Handle:
    """Exchanges this model's gradients with a compression method from now on. All ranks call it alike.

    Args:
        model: a ``DistributedDataParallel`` model without a communication hook of its own.
        method: a method, the string that makes it, or a :class:`grace.Policy`. A bare method leaves tensors of at most
            one dimension and tensors under 1,024 elements uncompressed, fused into one all-reduce.
        granularity: what is compressed as one tensor: each "parameter" (layer-wise), each "bucket" (of
            ``bucket_cap_mb``), or the whole "model".
        seed: of all random streams.
        nonfinite: what becomes of a tensor in which some rank has an inf or NaN: all ranks see a NaN mean
            ("propagate"), 0 ("skip"), or NonFiniteError ("error").
        check: compare all collectives between ranks before they start; slow, for debugging.
        optimizer: where memories that follow the learning rate (``follow_lr=true``) read it: that of its first group of
            parameters. Only the ratio between steps counts, so one group speaks for all that follow one schedule.
        steps_per_epoch: synchronised steps in an epoch, for schedules that count epochs.

    Returns:
        A handle: ``stats``, ``state_dict()``, ``load_state_dict(s)``, ``switch(method)``, ``detach()``.

    Raises:
        ConfigurationError: not such a model, or a method that cannot work.
        InputError: a complex or otherwise unsuitable parameter, by name.
        FingerprintMismatch: ranks that differ in method, policy or model, on every rank, within a minute.
    """
    return Handle(
        model,
        method,
        granularity=granularity,
        seed=seed,
        nonfinite=nonfinite,
        check=check,
        optimizer=optimizer,
        steps_per_epoch=steps_per_epoch,
    )


def _at_the_end_of_backward(callback: Any) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(callback)
