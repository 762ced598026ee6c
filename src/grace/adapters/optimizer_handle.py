"""The exchange of :func:`grace.DistributedOptimizer` between ``backward()`` and ``step()``.

Hooks note each gradient that has come. Buckets of gradients go to a lane, one first-in-first-out thread, in one fixed order:
that of the parameters from the last to the first. Networks match exchanges by their order, and gradients may become ready in
another order on each rank. On a GPU the thread has a stream of its own, too.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from grace.adapters.applied import Applied
from grace.adapters.backward import on_arrival
from grace.adapters.buckets import fill_buckets
from grace.adapters.choosing import read_choice
from grace.adapters.pending_gradient import placeholder
from grace.adapters.regrouping import Regrouping
from grace.adapters.scaling import describe_scaler, scale_of
from grace.adapters.taken import refuse_shared, release, take
from grace.adapters.trained import list_replicated, name_trained, refuse_ddp, refuse_in_backward, refuse_split
from grace.adapters.unused import Unused, UnusedGradient
from grace.auto.settings import Auto
from grace.collectives import AllReduce, Exchange
from grace.contract.method import Method
from grace.errors import ConfigurationError, GraceError, InputError, StateError
from grace.registry.adaptive import Adaptive
from grace.registry.policy import Policy
from grace.run.elastic import Regrouped
from grace.run.lane import lane_for
from grace.run.optimizer import Settings, read_settings
from grace.run.options import Options
from grace.run.session import Session
from grace.run.steps import Steps
from grace.transports.base import Transport

_DROPPED = (
    "the gradient of {} was {} between backward() and step(), while other ranks exchange theirs: call zero_grad() before "
    "backward(), or optimizer.synchronize() before gradients are dropped"
)
_TAKEN = (
    "is trained by a grace.DistributedOptimizer, which exchanges its gradient, too: ranks would end with different "
    "parameters. Use one of the two, or call optimizer.handle.detach() first"
)


class OptimizerHandle(Regrouping):
    """Grace at work on one optimizer: its ``handle``. Made by :func:`grace.DistributedOptimizer`; all ranks call its methods
    alike, and between steps.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        method: Policy | Method[Any] | Auto | Adaptive | str,
        named_parameters: Iterable[tuple[str, Tensor]] | None,
        transport: Transport,
        options: Options,
        *,
        backward_passes_per_step: int,
        scaler: torch.amp.GradScaler | None,
        unused: UnusedGradient,
    ):
        self._parameters = name_trained(optimizer, named_parameters)
        refuse_ddp(self._parameters)
        refuse_split(self._parameters)
        refuse_shared(self._parameters)
        refuse_in_backward(self._parameters)
        self._unused = Unused(self._parameters, unused)
        knobs: dict[str, object] = {
            "bucket_mb": options.bucket_bytes / 2**20,
            "backward_passes_per_step": backward_passes_per_step,
            "unused": unused,
        }
        if scaler is not None:
            knobs["scaler"] = describe_scaler(scaler, self._parameters)
        auto, fixed, more = read_choice(method)
        super().__init__(Steps(Session(self._parameters, fixed, transport, options, knobs=knobs | more, repairs=True)))
        self._optimizer, self._scaler, self._passes = optimizer, scaler, backward_passes_per_step
        self._applied = Applied([self._session], self._parameters, optimizer)
        self._begin_auto(auto)
        self._check_optimizer()
        self._buckets = fill_buckets(self._parameters, options.bucket_bytes)
        self._place = {name: place for place, names in enumerate(self._buckets) for name in names}
        self._known = set(self._parameters.values())
        self._lane = lane_for(next(iter(self._parameters.values())).device)
        self.stats.overlaps = self._lane.overlaps
        self._turn = threading.Lock()  # the autograd engine has a thread for each device
        self._error: BaseException | None = None  # of this step, for the user's thread
        self.automatic = True  # whether step() synchronizes
        self._begin()
        me = weakref.ref(self)
        hooks = [
            p.register_post_accumulate_grad_hook(on_arrival(me, name))  # type: ignore[no-untyped-call]
            for name, p in self._parameters.items()
        ]
        self._own = type(optimizer)
        self._hooks: list[RemovableHandle] = [*hooks, optimizer.register_step_pre_hook(_before_step)]
        self._alone = False  # whether it was looked for a DistributedDataParallel model that was made later
        take(self, self._known, _TAKEN)

    def _begin(self) -> None:
        """Starts a step: nothing has come yet."""
        self._left = dict.fromkeys(self._parameters, self._passes)  # passes to come
        self._missing = [set(names) for names in self._buckets]
        self._next = 0  # the first bucket that has not been sent
        self._taken: dict[str, tuple[Tensor, Tensor]] = {}  # the gradient, and what stands in for it
        self._came = self._synchronized = self._gave = False
        self._unused.begin()

    # ---- during the backward pass -----------------------------------------------------------------------------------
    def arrive(self, name: str) -> None:
        """Notes that a backward pass has accumulated into this gradient."""
        with self._turn:
            self.check_open()
            if not self._came:
                self._applied.look(arrived=name)
            self._came, self._synchronized = True, False
            if not self._left[name]:
                self._fail(GraceError(
                    f"{name!r} got a gradient in more than backward_passes_per_step={self._passes} backward passes before "
                    "step(); say how many there are"
                ))  # fmt: skip
            gradient = self._parameters[name].grad
            if gradient is None or gradient.layout != torch.strided:
                self._fail(InputError(f"the gradient of {name!r} is sparse; make the layer with sparse=False"))
            self._left[name] -= 1
            if not self._left[name]:
                self._take(name)
                while self._next < len(self._buckets) and not self._missing[self._next]:
                    self._submit()

    def _take(self, name: str) -> None:
        """Takes a gradient that this rank no longer changes."""
        p = self._parameters[name]
        if p.grad is None:
            self._unused.lack(name)
        gradient = torch.zeros_like(p) if p.grad is None else p.grad
        p.grad = placeholder(gradient)
        self._taken[name] = (gradient, p.grad)
        self._missing[self._place[name]].discard(name)

    def _submit(self) -> None:
        """Sends the next bucket on its way."""
        if self._next == 0:
            self._applied.settle()
            self._session.replicas.note_parameters(self._parameters.values())
            rate = self._optimizer.param_groups[0].get("lr")
            if rate is not None:
                self.lr = float(rate)
            if self._scaler is not None:
                self._steps.scale = scale_of(self._scaler, self._taken[self._buckets[0][0]][0].device)
        gradients = {name: self._taken[name][0].detach() for name in self._buckets[self._next]}
        self._next += 1
        last = self._next == len(self._buckets)
        flags = self._unused.flags() if last else None
        self._comes(gradients)
        self._lane.submit(lambda: self._exchange(gradients, last, flags))

    def _exchange(self, gradients: dict[str, Tensor], last: bool, flags: Tensor | None) -> None:
        """Replaces these gradients by their means. Runs in the lane; an error is kept for the user's thread."""
        try:
            if self._session.error is None:
                lent = {name: x.contiguous() for name, x in gradients.items()}
                self._exchange_bucket(lent, last, gradients, flags)
        except BaseException as error:
            self._error = self._error or error

    # ---- around the optimizer's step --------------------------------------------------------------------------------
    @torch.no_grad()
    def synchronize(self) -> None:
        """See :func:`grace.DistributedOptimizer`."""
        self.check_open()
        if self._has_means():
            return
        self._check_parameters()
        self._check_alone()
        for name, p in self._parameters.items():
            if self._left[name]:
                if p.grad is None and self._left[name] < self._passes:
                    self._fail(GraceError(_DROPPED.format(repr(name), "dropped")))
                self._take(name)
        while self._next < len(self._buckets):
            self._submit()
        with self.stats.wait():
            self._lane.drain()
        for name, p in self._parameters.items():
            gradient, standing = self._taken[name]
            if p.grad is not standing:
                self._fail(GraceError(_DROPPED.format(repr(name), "dropped" if p.grad is None else "replaced")))
            p.grad = gradient
        error, self._error = self._session.error or self._error, None
        unused = self._unused.find(agreed=error is None)
        for name in unused:
            self._parameters[name].grad = None
        self._begin()
        self._applied.hand_out(self._parameters, unused)
        self._applied.end()
        if error is not None:
            raise error
        self._synchronized = True
        self._gave = any(p.grad is not None for p in self._parameters.values())
        self._session.repair(lambda: list_replicated(self._parameters.values(), self._optimizer))
        self._session.logs.report()

    def _has_means(self) -> bool:
        """True if gradients are means; not if they were dropped since, as by the model's zero_grad(), which tells nobody:
        other ranks are in the next step then.
        """
        if self._synchronized and self._gave and all(p.grad is None for p in self._parameters.values()):
            self.before_zero_grad()
        return self._synchronized

    def before_step(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        """Called when the optimizer is about to step; ``args`` begin with the optimizer. Returns them if they change."""
        self.check_open()
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if self.automatic and closure is not None:
            if len(args) > 1:
                return (args[0], self._distribute(closure), *args[2:]), kwargs
            return args, {**kwargs, "closure": self._distribute(closure)}
        if closure is None and not self._has_means():
            if not self.automatic:
                self._fail(GraceError("step() in skip_synchronize(): call optimizer.synchronize() first"))
            if self._scaler is not None and self._scaler.is_enabled():
                self._fail(GraceError(
                    "scaler.step() has looked at gradients of this rank alone: call optimizer.synchronize() first"
                ))  # fmt: skip
            self._check_came()
            self.synchronize()
        self._synchronized = False
        return None

    def _distribute(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure, after which gradients and its loss are means: all ranks decide alike by its loss."""

        def evaluate() -> Any:
            loss = closure()
            if not self._has_means():
                self._check_came()
                self.synchronize()
            return loss if loss is None else self._average(loss)

        return evaluate

    def _average(self, loss: Tensor | float) -> Tensor | float:
        device = next(iter(self._parameters.values())).device
        local = torch.as_tensor(loss, dtype=torch.float64, device=device).detach().reshape(1).clone()
        mean = self._session.run(_mean(local))
        return mean.reshape(()).to(loss) if isinstance(loss, Tensor) else float(mean)

    def before_zero_grad(self) -> None:
        """Called when gradients are about to be dropped."""
        if self._came and self.error is None:
            self._fail(GraceError(_DROPPED.format("every parameter", "about to be dropped by zero_grad()")))
        self._applied.clear()
        self._synchronized = False

    # ---- errors -----------------------------------------------------------------------------------------------------
    def _fail(self, error: BaseException) -> NoReturn:
        """Leaves the job, so that ranks that wait for this one hear of it."""
        self._session.close(error)
        raise error

    def _check_came(self) -> None:
        if not self._came:
            self._fail(GraceError(
                "step() without backward(): no gradient has come since the last step. A rank that has no data in this step "
                "calls optimizer.synchronize() first, which counts zeros for it"
            ))  # fmt: skip

    def _check_parameters(self) -> None:
        for p in (p for group in self._optimizer.param_groups for p in group["params"]):
            if p.requires_grad and p not in self._known:
                self._fail(ConfigurationError(
                    f"the optimizer trains a parameter of shape {tuple(p.shape)} that was not there, or was frozen, when "
                    "Grace began: call handle.detach(), and DistributedOptimizer again"
                ))  # fmt: skip

    def _check_alone(self) -> None:
        """In the first step: whether the model was wrapped after this optimizer was made."""
        if not self._alone:
            try:
                refuse_ddp(self._parameters)
            except ConfigurationError as error:
                self._fail(error)
            self._alone = True

    def check_open(self) -> None:
        """Refuses to go on after an error."""
        if self.error is not None:
            raise self.error

    def check_between_steps(self) -> None:
        """Refuses what cannot be done while gradients are on their way.

        Raises:
            GraceError: some are, or the handle is closed.
        """
        self.check_open()
        if self._came:
            raise GraceError(
                "gradients have come, and are not means yet: do this between steps, after optimizer.step()"
            )

    # ---- for the user -----------------------------------------------------------------------------------------------
    def _settings(self) -> Settings | None:
        return read_settings(self._optimizer)

    def switch(self, method: Policy | Method[Any] | Auto | Adaptive | str) -> None:
        self.check_between_steps()
        super().switch(method)

    def set_passes(self, passes: int) -> None:
        """From the next step on so many backward passes are accumulated. All ranks call it.

        Raises:
            FingerprintMismatch: the ranks say different numbers. They go on as before then.
        """
        self.check_between_steps()
        self._session.change_knobs(backward_passes_per_step=passes)
        self._passes = passes
        self._left = dict.fromkeys(self._parameters, passes)

    def state_dict(self) -> dict[str, Any]:
        self.check_between_steps()
        return super().state_dict()

    def load_state_dict(self, saved: Any) -> None:
        self.check_between_steps()
        super().load_state_dict(saved)

    def load_or_begin(self, saved: Any) -> None:
        """As :meth:`load_state_dict`; but if every rank was given the state of one rank, all memories start empty, with a
        warning.
        """
        try:
            self.load_state_dict(saved)
        except StateError:  # on all ranks
            rank, step = (saved.get(key) if isinstance(saved, Mapping) else None for key in ("rank", "step"))
            alike = type(rank) is int and type(step) is int and step >= 0
            problem = None if alike and self.world > 1 else StateError("not the state of one rank")
            try:
                self._session.compare_loads(problem, {"saved by rank": rank, "step": step})
            except StateError:
                problem = StateError("it is not that of one rank, either")
            if problem is not None or type(step) is not int:
                raise
            self._session.adopt(self._session.begin_state(step, self._session.worker.seed, {}), {})
            warnings.warn(
                f"every rank loads what rank {rank} saved, but memories are each rank's own: all start empty. Save "
                "optimizer.state_dict() on each rank, or optimizer.handle.checkpoint() with torch.distributed.checkpoint",
                stacklevel=3,
            )

    def regroup(self, transport: Transport, model: Iterable[Tensor] = ()) -> Regrouped:
        """Goes on among the workers of this transport, all of which call it: before the first step, after an error in a step,
        which counts on all who are left or on none, or between two steps. Gradients are dropped.

        Who joins, or has missed a step, gets the parameters and the optimizer's state of one that has not, and owes nothing;
        see :meth:`grace.run.elastic.Elastic.regroup`. It makes its optimizer over :class:`grace.transports.alone.Alone`.

        Args:
            transport: such as :meth:`grace.transports.rounds.Rounds.meet` gives; the handle takes it over.
            model: what else is the same on all workers, of any shapes, such as ``net.buffers()``.

        Raises:
            TransportError: one of them has died since: call it again, with those who are left.
            GraceError: a step has failed before this was called for the first time.
            ConfigurationError: under ``auto``.
            FingerprintMismatch: the workers differ in what they exchange, on all of them.
        """
        self._lane.drain()
        self._begin()
        self._error = None
        self._applied.forget()
        for p in self._parameters.values():
            p.grad = None
        return self._regroup(transport, [*self._parameters.values(), *model], self._optimizer, self._own)

    def detach(self) -> None:
        """The optimizer goes on alone, on this rank's gradients, as one of its own class."""
        for hook in self._hooks:
            hook.remove()
        self._lane.close()
        for name, (gradient, standing) in self._taken.items():
            p = self._parameters[name]
            p.grad = gradient if p.grad is standing else p.grad
        self._taken = {}
        self._session.close()
        self._optimizer.__class__ = self._own
        release(self)


def _before_step(optimizer: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    handle: OptimizerHandle = optimizer.handle
    return handle.before_step(args, kwargs)


def _mean(x: Tensor) -> Exchange[Tensor]:
    return (yield AllReduce(x, donate=True))
