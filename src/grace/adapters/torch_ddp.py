"""Grace at work on a ``DistributedDataParallel`` model.

A communication hook hands each bucket of gradients to a lane, one first-in-first-out thread with a process group of its
own, so that exchanges overlap with the backward pass and keep their order on all ranks. On a GPU the thread has a stream of
its own, too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from grace.adapters.applied import Applied
from grace.adapters.backward import at_end_of_backward, find_tensors
from grace.adapters.choosing import read_choice
from grace.adapters.ddp_hook import Hook
from grace.adapters.doors import register_door
from grace.adapters.regrouping import Regrouping
from grace.adapters.scaling import describe_scaler, scale_of
from grace.adapters.taken import refuse_shared
from grace.adapters.trained import list_replicated, refuse_in_backward
from grace.adapters.unexchanged import Unexchanged, refuse_foreign
from grace.adapters.wrappers import explain_wrapper
from grace.auto.settings import Auto
from grace.contract.method import Method
from grace.errors import ConfigurationError, GraceError, InputError, NonFiniteError
from grace.registry.adaptive import Adaptive
from grace.registry.policy import Policy
from grace.run.elastic import Regrouped
from grace.run.lane import lane_for
from grace.run.optimizer import Settings, read_settings
from grace.run.options import Options
from grace.run.session import Session
from grace.run.steps import Steps
from grace.transports.base import Transport, describe
from grace.transports.choose import transport_beside

_NEW = (
    "Call handle.detach(), wrap the module anew with them, and attach again; or leave them out on purpose, before wrapping: "
    "DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, names)"
)


class _Ticket:
    """A bucket that waits for its means."""

    def __init__(self, buffer: Tensor, names: set[str]):
        self.buffer, self.waiting = buffer, names
        devices: list[int | str | torch.device] | None = [buffer.device] if buffer.is_cuda else None
        self.future: Future[Tensor] = Future(devices=devices)


class DDPHandle(Regrouping):
    """Grace at work on one ``DistributedDataParallel`` model. All ranks call its methods alike."""

    def __init__(
        self,
        model: DistributedDataParallel,
        method: Policy | Method[Any] | Auto | Adaptive | str,
        options: Options,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        scaler: torch.amp.GradScaler | None = None,
        transport: str | Transport | None = "auto",
    ):
        named = {n: p for n, p in model.module.named_parameters() if n not in model.parameters_to_ignore}
        self._names = {p: name for name, p in named.items()}
        trained = {name: p for name, p in named.items() if p.requires_grad}
        refuse_shared(trained)
        if getattr(model, "mixed_precision", None) is not None:
            raise ConfigurationError(
                "attach: this model was made with DistributedDataParallel(mixed_precision=...), which reduces gradients by a "
                "communication hook of its own; legal: DistributedDataParallel without it, under torch.autocast"
            )
        refuse_in_backward(trained)
        refuse_foreign(optimizer, model.module.parameters(), "as torch.optim.SGD(model.parameters(), lr)")
        self._hook = Hook.on(model)
        if self._hook.handler is not None:
            raise ConfigurationError("Grace is attached to this model; use handle.switch(...) or handle.detach() first")
        over = transport_beside(model.process_group, transport)
        place, group = (over.rank, over.world), (self._hook.rank, self._hook.world)
        if place != group:
            over.close()
            raise ConfigurationError(
                f"transport {describe(over)}: rank and world {place} are not those of the model's group, {group}"
            )
        # these and the size decide DDP's buckets
        knobs: dict[str, object] = {name: getattr(model, name) for name in ("find_unused_parameters", "static_graph")}
        if scaler is not None:
            knobs["scaler"] = describe_scaler(scaler, trained)
        options = replace(options, bucket_bytes=int(model.bucket_bytes_cap))
        absent = (
            "DistributedDataParallel does not exchange what was frozen when it wrapped the model: unfreeze it first"
        )
        auto, fixed, more = read_choice(method)
        super().__init__(
            Steps(
                Session(trained, fixed, over, options, knobs=knobs | more, repairs=optimizer is not None),
                absent=absent,
            )
        )
        self._optimizer, self._scaler, self._trained = optimizer, scaler, list(trained.values())
        self._applied = Applied([self._session], trained, optimizer)
        self._begin_auto(auto)
        self._check_optimizer()
        self._lane = lane_for(next(iter(trained.values())).device)
        self.stats.overlaps = self._lane.overlaps
        self._waits: AbstractContextManager[None] = nullcontext()
        self._tickets: list[_Ticket] = []
        self._error: BaseException | None = None  # of this backward pass, for the user's thread
        self._watching = False
        self._left_out = [(name, p) for name, p in named.items() if not p.requires_grad]
        self._unexchanged = Unexchanged(
            model.module, trained, model.parameters_to_ignore, apart=_find_apart(model), remedy=_NEW,
            optimizer=optimizer, session=self._session,
        )  # fmt: skip
        self._unexchanged.watch()
        self._hook.handler = self

    def _settings(self) -> Settings | None:
        return None if self._optimizer is None else read_settings(self._optimizer)

    # ---- during the backward pass -----------------------------------------------------------------------------------
    def forwarded(self, output: Any) -> None:
        """Looks, when the backward pass of this output begins, which gradients were dropped before."""
        if self._applied.undecided:
            applied = self._applied
            for x in find_tensors(output):
                if x.grad_fn is not None:
                    x.grad_fn.register_prehook(lambda _: applied.look())

    def accept(self, bucket: GradBucket) -> Future[Tensor]:
        """Takes a bucket of gradients; the future holds the buffer once the means are in it."""
        if not self._watching:
            self._watching = at_end_of_backward(self._on_backward_end)
            self._hook.hear_forward()
            if self._session.error is None:
                self._applied.settle()
            if self._watching:
                self._session.replicas.note_parameters(self._trained)
            if self._optimizer is not None:
                self.lr = float(self._optimizer.param_groups[0]["lr"])
            if self._scaler is not None:
                self._steps.scale = scale_of(self._scaler, bucket.buffer().device)
        buffer, gradients = bucket.buffer(), {}
        try:
            self._check_frozen()
            gradients = self._gradients(bucket)
        except InputError as error:
            self._fail(error)
        ticket = _Ticket(buffer, set(gradients))
        last = bucket.is_last()
        self._applied.hand_out(gradients)
        self._comes(gradients)
        self._lane.submit(lambda: self._job(ticket, gradients, last))
        if not self._watching:  # this rank has joined early, and gives zeros while others go on
            self._lane.drain()
            self._raise()
        return ticket.future

    def _gradients(self, bucket: GradBucket) -> dict[str, Tensor]:
        """The bucket's gradients by name, without those of parameters that were frozen before Grace was attached."""
        names = []
        for p in bucket.parameters():
            name = self._names.get(p)
            if name is None:
                raise InputError(f"a gradient of {tuple(p.shape)} is of no parameter of the model: it was replaced")
            names.append(name)
        if bucket.buffer().is_sparse:
            text = ", ".join(map(repr, names))
            raise InputError(f"the gradient of {text} is sparse; make the layer with sparse=False")
        like = self._session.like
        return {name: x for name, x in zip(names, bucket.gradients(), strict=True) if name in like}

    def _check_frozen(self) -> None:
        """True if what was frozen when Grace was attached still is: nobody exchanges its gradient."""
        for name, p in self._left_out:
            if p.requires_grad:
                raise InputError(
                    f"{name!r} requires a gradient now, and did not when Grace was attached: this rank alone would train it. "
                    "Freeze it again; or call handle.detach(), wrap model.module anew in DistributedDataParallel, which does "
                    "not exchange it either, and attach to that"
                )

    def _job(self, ticket: _Ticket, gradients: dict[str, Tensor], last: bool) -> None:
        """Exchanges what has become complete. Runs in the lane; an error is kept for the user's thread."""
        self._tickets.append(ticket)  # here, so that only the lane's thread touches the list
        done: Collection[str] = ()
        try:
            if self._session.error is None:
                done = self._exchange_bucket(gradients, last)
        except BaseException as error:
            self._fail(error)
        for each in self._tickets:
            each.waiting.difference_update(done)
        finished = [t for t in self._tickets if last or self._error is not None or not t.waiting]
        self._tickets = [t for t in self._tickets if t not in finished]
        for each in finished:
            each.future.set_result(each.buffer)

    # ---- errors -----------------------------------------------------------------------------------------------------
    def _fail(self, error: BaseException) -> None:
        """Keeps the first error, and leaves the job, so that ranks that wait for this one hear of it."""
        if self._error is None:
            self._error = error
        if not isinstance(error, NonFiniteError):  # all ranks have found that one, in step
            self._session.close(error)

    def _on_backward_end(self) -> None:
        """Runs when the backward pass ends. DistributedDataParallel waits for its buckets in a callback that was
        queued later than this one: the error must come after that.
        """
        if self.stats.overlaps:
            self._waits = self.stats.wait()
            self._waits.__enter__()
        at_end_of_backward(self._raise)

    def _raise(self) -> None:
        self._watching = False
        self._unexchanged.exchanged()
        self._waits.__exit__(None, None, None)
        self._waits = nullcontext()
        error, self._error = self._session.error or self._error, None
        self._applied.end()
        if error is not None:
            raise error
        if (optimizer := self._optimizer) is not None:
            self._session.repair(lambda: list_replicated(self._trained, optimizer))
        self._session.logs.report()

    # ---- for the user -----------------------------------------------------------------------------------------------
    def switch(self, method: Policy | Method[Any] | Auto | Adaptive | str) -> None:
        self._check_attached()
        super().switch(method)

    def regroup(self, model: DistributedDataParallel, transport: str | Transport | None = "auto") -> Regrouped:
        """Goes on among the workers of a new process group, all of which call it: before the first step, after an error in a
        step, which counts on all who are left or on none, or between two steps. See :meth:`grace.run.elastic.Elastic.regroup`.

        Who joins, or has missed a step, gets parameters, buffers and, if :func:`grace.attach` was given it, the optimizer's
        state of one that has not, and owes nothing. It attaches to its model in a process group of its own first.

        Args:
            model: the same module in a new ``DistributedDataParallel(..., init_sync=False)`` over that process group. Drop the
                old one.
            transport: between those ranks, as for :func:`grace.attach`.

        Raises:
            TransportError: one of them has died since: call it again, with those who are left.
            GraceError: a step has failed before this was called for the first time.
            ConfigurationError: another module, one that Grace is attached to, or under ``auto``.
            FingerprintMismatch: the workers differ in what they exchange, on all of them.
        """
        module = {n: p for n, p in model.module.named_parameters() if n not in model.parameters_to_ignore}
        if {p: name for name, p in module.items()} != self._names:
            raise ConfigurationError(
                "regroup takes the module that Grace is attached to, in a new wrapper; this is another module"
            )
        hook = Hook.on(model)
        if hook.handler is not None:
            raise ConfigurationError(
                "Grace is attached to this wrapper; regroup takes a new one, over a new process group"
            )
        self._hook.handler = None
        self._lane.drain()
        self._tickets, self._error, self._watching, self._waits = [], None, False, nullcontext()
        self._applied.forget()
        for p in self._trained:
            p.grad = None
        alike = [*model.module.parameters(), *model.module.buffers()]
        answer = self._regroup(transport_beside(model.process_group, transport), alike, self._optimizer)
        self._hook, hook.handler = hook, self
        self._unexchanged.apart = _find_apart(model)
        return answer

    def detach(self) -> None:
        """The model goes on without compression, as DistributedDataParallel alone would."""
        if self._hook.handler is not self:
            return
        self._hook.handler = None
        self._unexchanged.close()
        self._lane.close()
        self._session.close()

    def _check_attached(self) -> None:
        if self._hook.handler is not self:
            raise GraceError("this handle is detached; attach again")


def _find_apart(model: DistributedDataParallel) -> Callable[[], bool]:
    """A function that tells whether gradients stay with this rank now, as under ``no_sync``. It keeps no model alive."""
    wrapper = weakref.ref(model)

    def apart() -> bool:
        ddp = wrapper()
        return ddp is None or not ddp.require_backward_grad_sync

    return apart


@register_door("ddp")
class DDPDoor:
    """The door for ``DistributedDataParallel`` models, for whose buckets ``auto`` can choose."""

    chooses = True

    def takes(self, model: object) -> str | None:
        """See :class:`grace.adapters.doors.Door`."""
        return None if isinstance(model, DistributedDataParallel) else explain_wrapper(model)

    def open(
        self,
        model: DistributedDataParallel,
        method: Policy | Method[Any] | Auto | Adaptive | str,
        options: Options,
        *,
        optimizer: torch.optim.Optimizer | None,
        scaler: torch.amp.GradScaler | None,
        transport: str | Transport | None,
    ) -> DDPHandle:
        """See :class:`grace.adapters.doors.Door`."""
        return DDPHandle(model, method, options, optimizer=optimizer, scaler=scaler, transport=transport)
