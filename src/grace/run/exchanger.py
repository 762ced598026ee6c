"""What all adapters share: one worker's exchange of named tensors over any transport."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from grace.collectives import Exchange
from grace.contract.method import Method
from grace.contract.peer import Peer
from grace.errors import ConfigurationError, GraceError, NonFiniteError, StateError
from grace.registry import spell
from grace.registry.policy import Policy
from grace.run.arrivals import Arrivals
from grace.run.drive import broadcast_, drive
from grace.run.fingerprint import fingerprint
from grace.run.groups import Group, form_groups, regroup
from grace.run.log import Logs
from grace.run.options import DEFAULTS, Options
from grace.run.plan import Plan, plan_groups, warn_uncompressed
from grace.run.saved import WorkerState, check_form, restore_shared
from grace.run.stats import Stats
from grace.run.worker import Worker, check_tensor
from grace.transports.agreement import agree, compare_loads
from grace.transports.base import Transport, describe, find_axes
from grace.transports.checked import Checked
from grace.transports.timed import Timed
from grace.transports.traced import Tracer

T = TypeVar("T")


class Exchanger:
    """Averages the tensors of one model, step by step. It knows no toolkit: an adapter says where tensors come from and
    where the means go. All ranks make one with the same arguments, and call its methods alike and in the same order.

    Args:
        like: a tensor for each name that is exchanged; only its shape and dtype count, so meta tensors will do. The order of
            names is the same on all ranks.
        method: a method, the string that makes it, or a :class:`grace.Policy`.
        transport: between the ranks; the exchanger takes it over, and closes it.
        options: how to exchange.
        counts_steps: whether a step here is a step of training; if not, call :meth:`count_step` after each step of training.
        knobs: what else the ranks must have in common, each under its name.
        absent: what a user can do about a tensor that did not come.

    Raises:
        ConfigurationError, InputError: a method that cannot work, nothing to exchange, an unsuitable tensor (by name).
        FingerprintMismatch: ranks that differ, on every rank; the transport is closed then.

    ``stats`` counts. ``error`` is what ended the exchanger, if anything has; every later step raises it again. ``scale`` is
    the factor that tensors come with and means leave with: memories are in units without it. Set it before a step.
    ``transport`` says what it runs over, and why. An adapter calls ``logs.report()`` in the user's thread to tell the logs of
    a step.
    """

    def __init__(
        self,
        like: Mapping[str, Tensor],
        method: Policy | Method[Any] | str,
        transport: Transport,
        options: Options = DEFAULTS,
        *,
        counts_steps: bool = True,
        knobs: Mapping[str, object] | None = None,
        absent: str = "Give zeros where there is no gradient",
    ):
        if not like:
            raise ConfigurationError("there is nothing to exchange: no parameter requires a gradient")
        for name, x in like.items():
            check_tensor(name, x)
        self.like = {name: x.detach() for name, x in like.items()}
        self.options, self._counts_steps = options, counts_steps
        self._dense_bytes = sum(x.numel() * x.element_size() for x in self.like.values())
        self._knobs = {**asdict(options), **(knobs or {})}
        self._arrivals = Arrivals(self.like, absent)
        policy = Policy.of(method)
        self.groups, group_policy = form_groups(self.like, policy, options)
        self.rank, self.world = transport.rank, transport.world
        self.worker = Worker(group_policy, self.rank, self.world, options, axes=find_axes(transport))
        self._transport, self.transport = transport, describe(transport)
        try:
            self._agree(policy)
            self._look_at(policy)
        except BaseException:
            transport.close()
            raise
        self._checked = Checked(transport) if options.check else None
        self._timed = Timed(self._checked or transport)
        self._tracer = Tracer(self.rank, self.world, find_axes(transport))
        self._arrivals.sort_into(self.groups)
        self._spoiled = False  # all ranks have found an inf or NaN, and skip the rest of the step
        self._turn = threading.Lock()
        self.error: BaseException | None = None
        self.scale = 1.0
        self._closed = False
        self.stats = Stats(self.world, collectives=self._timed.collectives)
        self.logs = Logs(self.worker, self.stats)
        self._finalizer = weakref.finalize(self, transport.close)
        self._finalizer.atexit = False  # at exit the process ends, and its connections with it

    def _agree(self, policy: Policy) -> None:
        agree(fingerprint(policy, self.like, self._knobs), self._transport)

    def _look_at(self, policy: Policy) -> None:
        """Warns of what was hardly intended, on all ranks alike."""
        policy.check_names(self.like.keys())
        if self.rank == 0:
            warn_uncompressed(policy, self.like)

    # ---- a step -----------------------------------------------------------------------------------------------------
    def step(
        self, tensors: Mapping[str, Tensor], *, last: bool = True, into: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """One step, or with ``last=False`` a part of one, such as a bucket: this worker's tensors -> the means.

        The tensors are donated, and exchanged in the order given, which is the same on all ranks. In one step every name comes
        once; a rank that has no gradient gives zeros. A tensor whose group is not complete waits for a later part, and is not
        in the answer.

        Args:
            tensors: by name.
            last: whether this ends the step.
            into: where means are copied to, by name; it may be the tensors themselves. Other means are handed out where they
                are, and stay valid until the next call.

        Raises:
            InputError: an unknown name, another shape or dtype, a name that comes twice or not at all.
            NonFiniteError: with ``nonfinite="error"``, on all ranks. The rest of the step is skipped; the next may go on. On
                an accelerator it comes with the next step.
            GraceError: another thread is in a step, or the exchanger is closed.
            TransportError, RoundMismatch, PayloadError, or what a method raises: memories are as they were before this call,
                and the exchanger has ended: the other ranks hear of it.
        """
        self._check_open()
        if not self._turn.acquire(blocking=False):
            raise GraceError("another thread is in a step: exchanges need one order, which all ranks share")
        try:
            return self._step(tensors, last, into or {})
        except NonFiniteError:  # all ranks raise it, in step
            self._spoiled = not last
            self._arrivals.forget()
            raise
        except BaseException as error:
            self.close(error)
            raise
        finally:
            if last and self.error is None:
                self.worker.advance()
                if self._counts_steps:
                    self.count_step()
            self._turn.release()

    def _step(self, tensors: Mapping[str, Tensor], last: bool, into: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if self._spoiled:
            self._spoiled = not last
            return {}
        ready = self._arrivals.note(tensors, into, self.worker.step)
        if last:
            self._arrivals.check_complete(self.worker.step)
        means = {}
        if ready:
            aside = self.worker.aside_seconds
            with self.stats.time(self._timed):
                means = self._exchange(ready)
            self.stats.leave_out(self.worker.aside_seconds - aside)
        if last:
            self._arrivals.forget()
        return means

    def _exchange(self, ready: list[Group]) -> dict[str, Tensor]:
        stats, worker = self.stats, self.worker
        if self._checked is not None:
            self._checked.step = worker.step
        targets, tensors = {}, {}
        for group in ready:
            parts = self._arrivals.take(group)
            targets.update({name: target for name, (_, target) in parts.items()})
            tensors[group.name] = group.join({name: x for name, (x, _) in parts.items()}, worker.workspace)
        seen = worker.nonfinite_seen
        if self.scale != 1.0:
            for x in tensors.values():
                x.mul_(1.0 / self.scale)
        try:
            outs = drive(self._tracer.trace(worker.exchange(tensors)), self._timed)
        finally:
            stats.nonfinite += worker.nonfinite_seen - seen
        means = {}
        for group in ready:
            out = outs[group.name]
            for name, mean in group.split(out.mean).items():
                target = targets[name]
                if self.scale != 1.0:
                    mean = torch.mul(mean, self.scale, out=target)
                elif target is not None and target.data_ptr() != mean.data_ptr():
                    target.copy_(mean)
                means[name] = mean if target is None else target
        worker.workspace.reset()  # what was taken stays readable until the next exchange
        stats.traffic, stats.by_axis = self._tracer.traffic, self._tracer.by_axis
        return means

    def count_step(self, dense_bytes: int | None = None) -> None:
        """Counts a step of training that has ended; ``dense_bytes``: of its gradients, by default those of all tensors."""
        self.stats.steps += 1
        self.stats.dense_bytes += self._dense_bytes if dense_bytes is None else dense_bytes

    def take(self, like: Tensor) -> Tensor:
        """An uninitialized tensor like this one, to be filled and given to the coming step."""
        return self.worker.workspace.take(tuple(like.shape), like.dtype, like.device)

    def start_alike(self, tensors: Iterable[Tensor]) -> None:
        """Copies rank 0's numbers into these tensors, of whatever dtype, on all ranks."""
        broadcast_(tensors, self._transport, 0)

    # ---- for the user -----------------------------------------------------------------------------------------------
    @property
    def lr(self) -> float | None:
        """The learning rate of the coming step, the same on all ranks, for memories that follow it."""
        return self.worker.lr

    @lr.setter
    def lr(self, lr: float | None) -> None:
        self.worker.lr = lr

    @property
    def policy(self) -> Policy:
        """Which method for which tensor, or group of tensors."""
        return self.worker.policy

    def plan(self) -> Plan:
        """What this worker exchanges in the coming step, and what it sends for it."""
        worker = self.worker
        peer = Peer(self.rank, self.world, worker.step, steps_per_epoch=worker.steps_per_epoch, axes=worker.axes)
        return plan_groups(self.groups, self.like, self.worker.policy, peer)

    def switch(self, method: Policy | Method[Any] | str) -> None:
        """Uses another method or policy from the next step on. What memories owe is added to the next tensors.

        Raises:
            FingerprintMismatch: the ranks switch to different methods. They then go on as before.
        """
        self._check_open()
        policy = Policy.of(method)
        groups, group_policy = form_groups(self.like, policy, self.options)
        self._agree(policy)
        self._look_at(policy)
        if groups == self.groups:
            self.worker.switch(group_policy)
        else:
            owed = regroup(self.worker.settle(), self.groups, groups)
            self.worker.switch(group_policy)
            self.worker.owe(owed)
        self.groups = groups
        self._arrivals.sort_into(groups)

    def change_knobs(self, **knobs: object) -> None:
        """What an adapter does otherwise from the next step on. All ranks call it.

        Raises:
            FingerprintMismatch: the ranks change to different values. They go on as before then.
        """
        self._check_open()
        agree({name: repr(value) for name, value in knobs.items()}, self._transport)
        self._knobs.update(knobs)

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on, as plain containers of tensors. Each rank saves and loads its own.

        :func:`grace.state.flat` makes numpy arrays of it.
        """
        groups = {group.name: list(group.members) for group in self.groups}
        return {**self.worker.state_dict(), "granularity": self.options.granularity, "groups": groups}

    def load_state_dict(
        self, saved: Any, also: Callable[[Mapping[str, Any]], Mapping[str, object]] | None = None
    ) -> None:
        """Goes on where ``saved`` stopped, under the same method, tensors and number of workers. All ranks call it, each
        with its own state; either all of them load, or none.

        Args:
            saved: what :meth:`state_dict` gave.
            also: reads what an adapter has put beside it, without changing anything, and returns what all ranks must have in
                common of that, each under its name.

        Raises:
            StateError: on every rank, if one cannot load its state, if the states do not belong together, or if some
                ranks do not load. Nothing has changed then.
        """
        problem: StateError | None = None
        common: dict[str, object] = {}
        try:
            state = self.read_state(saved, self.rank, self.world)
            common = {"step": state.step, "seed": state.seed}
            common.update({f"method of {name}": spell(method) for name, (method, _) in state.states.items()})
            common.update(also(saved) if also else {})
        except StateError as error:
            problem = error
        self.compare_loads(problem, common)
        self.worker.adopt(state)

    def compare_loads(self, problem: StateError | None, common: Mapping[str, object]) -> None:
        """Tells all ranks whether this one can load a state (``problem``: why not), and compares what their states must share.

        Raises:
            StateError: on every rank, unless all can, and their states belong together.
        """
        texts = {what: str(value) for what, value in common.items()}
        text = compare_loads(self._transport, None if problem is None else str(problem), texts)
        if problem is not None:
            raise problem
        if text:
            raise StateError(text)

    def read_state(self, saved: Any, rank: int, world: int) -> WorkerState:
        """The state of rank ``rank`` of ``world``, from what its :meth:`state_dict` returned; nothing changes.

        Raises:
            StateError: it does not fit.
        """
        groups = {group.name: list(group.members) for group in self.groups}
        check_form(saved)
        if saved.get("groups") != groups:
            raise StateError(
                f"the state was saved with granularity={saved.get('granularity')!r} and other groups of parameters; "
                f"this is granularity={self.options.granularity!r}"
            )
        return WorkerState.read(saved, rank, world, self.worker.policy, self.group_tensors())

    def group_tensors(self) -> dict[str, Tensor]:
        """A tensor like each group's; on the CPU where the device is unknown."""
        like = {name: torch.empty(x.shape, dtype=x.dtype) if x.is_meta else x for name, x in self.like.items()}
        return {group.name: group.like(like) for group in self.groups}

    def begin_state(self, step: int, seed: int, shared: Mapping[str, tuple[str, list[Any]]]) -> WorkerState:
        """A fresh state at step ``step``, with what is ``shared`` where the method is the same; see
        :meth:`grace.run.saved.WorkerState.shared_parts`.

        Raises:
            StateError: what is shared does not fit.
        """
        states, like = {}, self.group_tensors()
        for name, (text, parts) in shared.items():
            method = self.worker.policy.method_for(name, like[name], step) if name in like else None
            if method is not None and spell(method) == text:
                fresh = method.init(like[name])
                states[name] = (method, restore_shared(fresh, method.kinds(fresh), list(parts), name))
        return WorkerState(step, seed, states, {})

    def adopt(self, state: WorkerState, debts: Mapping[str, Tensor]) -> None:
        """Goes on from ``state``, with ``debts`` to parameters, which are added to the next tensors."""
        alone = [Group(name, (name,), (tuple(x.shape),)) for name, x in self.like.items()]
        owed = regroup({name: x for name, x in debts.items() if bool(x.any())}, alone, self.groups)
        self.worker.adopt(replace(state, owed=owed))

    def run(self, exchange: Exchange[T]) -> T:
        """Runs an exchange that is not a step and is not counted. All ranks call it."""
        self._check_open()
        return drive(exchange, self._transport)

    def close(self, error: BaseException | None = None) -> None:
        """Leaves the job. With an error, the other ranks hear of it, and every later step raises it."""
        if error is not None and self.error is None:
            self.error = error
        self._closed = True
        self._finalizer.detach()
        self._transport.close(error)

    def _check_open(self) -> None:
        if self.error is not None:
            raise self.error
        if self._closed:
            raise GraceError("this exchange is closed; begin another")
