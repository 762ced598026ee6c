"""What all adapters share: one worker's exchange of named tensors over any transport."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from grace.collectives import Broadcast, Exchange
from grace.errors import ConfigurationError, GraceError, InputError, NonFiniteError, StateError
from grace.method import Method
from grace.policy import Policy
from grace.registry import spell
from grace.run.drive import drive
from grace.run.fingerprint import fingerprint
from grace.run.groups import Granularity, Group, form_groups, regroup
from grace.run.saved import WorkerState, restore_shared
from grace.run.stats import Stats
from grace.run.worker import NonFinite, Worker, check_tensor
from grace.transports.agreement import agree, compare_loads
from grace.transports.base import Transport
from grace.transports.checked import Checked
from grace.transports.timed import Timed
from grace.transports.traced import Tracer

T = TypeVar("T")
BUCKET_BYTES = 25 << 20


class Exchanger:
    """Averages the tensors of one model, step by step. It knows no toolkit: an adapter says where tensors come from and
    where the means go. All ranks make one alike, and call its methods alike and in the same order.

    Args:
        like: a tensor for each name that is exchanged; its shape and dtype count, so that meta tensors will do. The order
            of names is the same on all ranks.
        method: a method, the string that makes it, or a :class:`grace.Policy`.
        transport: between the ranks; the exchanger takes it over, and closes it.
        granularity: what is compressed as one tensor: each "parameter", each "bucket" of ``bucket_bytes``, or the "model".
        seed, nonfinite, steps_per_epoch: see :class:`grace.run.worker.Worker`.
        check: compare all collectives between ranks before they start.
        counts_steps: whether a step here is a step of training; if not, call :meth:`count_step` for each of those.
        knobs: what else the ranks must have in common, by what it is.
        absent: what a user can do about a tensor that did not come.

    Raises:
        ConfigurationError, InputError: a method that cannot work, nothing to exchange, an unsuitable tensor (by name).
        FingerprintMismatch: ranks that differ, on every rank; the transport is closed then.

    ``stats`` counts. ``error`` is what ended the exchanger, if something has; every later step raises it again. ``scale``
    is what tensors come multiplied with, and means leave multiplied with: memories are in units without it. Set it before
    a step.
    """

    def __init__(
        self,
        like: Mapping[str, Tensor],
        method: Policy | Method[Any] | str,
        transport: Transport,
        *,
        granularity: Granularity = "parameter",
        bucket_bytes: int = BUCKET_BYTES,
        seed: int = 0,
        nonfinite: NonFinite = "propagate",
        check: bool = False,
        steps_per_epoch: int | None = None,
        counts_steps: bool = True,
        knobs: Mapping[str, object] | None = None,
        absent: str = "Give zeros where there is no gradient",
    ):
        if not like:
            raise ConfigurationError("there is nothing to exchange: no parameter requires a gradient")
        for name, x in like.items():
            check_tensor(name, x)
        self.like = {name: x.detach() for name, x in like.items()}
        self.granularity, self._bucket_bytes, self._counts_steps = granularity, bucket_bytes, counts_steps
        self._kinds = {name: (x.shape, x.dtype) for name, x in self.like.items()}
        self._dense_bytes = sum(x.numel() * x.element_size() for x in self.like.values())
        self._knobs = {
            "granularity": granularity, "bucket_bytes": bucket_bytes, "seed": seed, "nonfinite": nonfinite,
            "check": check, "steps_per_epoch": steps_per_epoch, **(knobs or {}),
        }  # fmt: skip
        self._absent = absent
        policy = Policy.of(method)
        self.groups, group_policy = form_groups(self.like, policy, granularity, bucket_bytes)
        self.rank, self.world = transport.rank, transport.world
        self.worker = Worker(
            group_policy, self.rank, self.world, seed=seed, nonfinite=nonfinite, steps_per_epoch=steps_per_epoch
        )
        self._transport = transport
        try:
            self._agree(policy)
        except BaseException:
            transport.close()
            raise
        self._checked = Checked(transport) if check else None
        self._timed = Timed(self._checked or transport)
        self._tracer = Tracer(self.rank, self.world)
        self._group_of = {name: group for group in self.groups for name in group.members}
        self._came: set[str] = set()  # in this step
        self._waiting: dict[
            str, tuple[Tensor, Tensor | None]
        ] = {}  # of groups that are not complete: x, where its mean goes
        self._spoiled = False  # all ranks have found an inf or NaN, and leave out the rest of the step
        self._turn = threading.Lock()
        self.error: BaseException | None = None
        self.scale = 1.0
        self._closed = False
        self.stats = Stats(self.world, collectives=self._timed.collectives)
        self._finalizer = weakref.finalize(self, transport.close)
        self._finalizer.atexit = False  # the process is ending then, and its connections with it

    def _agree(self, policy: Policy) -> None:
        agree(fingerprint(policy, self.like, self._knobs), self._transport)

    # ---- a step -----------------------------------------------------------------------------------------------------
    def step(
        self, tensors: Mapping[str, Tensor], *, last: bool = True, into: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """One step, or with ``last=False`` a part of one, such as a bucket: this worker's tensors -> the means.

        The tensors are donated, and exchanged in the order in which they are given, which is the same on all ranks. In one
        step every name comes once; who has no gradient gives zeros. A tensor whose group is not complete waits for a later
        part, and is not in the answer.

        Args:
            tensors: by name.
            last: whether this ends the step.
            into: where means are copied to, by name; it may be the tensors themselves. Others are handed out where they
                are, and stay there until the next call.

        Raises:
            InputError: an unknown name, another shape or dtype, a name that comes twice or not at all.
            NonFiniteError: with ``nonfinite="error"``, on all ranks. The rest of the step is left out; the next may go on. On
                an accelerator it comes with the next step.
            GraceError: another thread is in a step, or the exchanger is closed.
            TransportError, RoundMismatch, PayloadError, or what a method raises: memories are what they were before this
                call, and the exchanger has ended: the other ranks hear of it.
        """
        self._check_open()
        if not self._turn.acquire(blocking=False):
            raise GraceError("another thread is in a step: exchanges need one order, which all ranks share")
        try:
            return self._step(tensors, last, into or {})
        except NonFiniteError:  # all ranks raise it, in step
            self._spoiled = not last
            self._forget_parts()
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
        ready = self._collect(tensors, into)
        if last and len(self._came) != len(self.like):
            absent = ", ".join(repr(name) for name in self.like if name not in self._came)
            raise InputError(
                f"step {self.worker.step} ended without {absent}, and every tensor takes part in every step. {self._absent}"
            )
        means = {}
        if ready:
            with self.stats.time(self._timed):
                means = self._exchange(ready)
        if last:
            self._forget_parts()
        return means

    def _collect(self, tensors: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> list[Group]:
        """Notes what has come; the groups that are now complete."""
        ready = []
        for name, x in tensors.items():
            kind = self._kinds.get(name)
            if kind is None:
                raise InputError(f"{name!r} was not there when the exchange began; legal: the names given then")
            if x.shape != kind[0] or x.dtype != kind[1] or x.layout != torch.strided:
                check_tensor(name, x)
                raise InputError(
                    f"{name!r} is {x.dtype} {tuple(x.shape)}, and was {kind[1]} {tuple(kind[0])} when it began"
                )
            if name in self._came:
                raise InputError(
                    f"{name!r} comes a second time in step {self.worker.step}; end the step first (last=True)"
                )
            self._came.add(name)
            self._waiting[name] = (x, into.get(name))
            group = self._group_of[name]
            if len(group.members) == 1 or all(member in self._waiting for member in group.members):
                ready.append(group)
        return ready

    def _exchange(self, ready: list[Group]) -> dict[str, Tensor]:
        stats, worker = self.stats, self.worker
        if self._checked is not None:
            self._checked.step = worker.step
        targets, tensors = {}, {}
        for group in ready:
            parts = {name: self._waiting.pop(name) for name in group.members}
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
        stats.traffic = self._tracer.traffic
        return means

    def _forget_parts(self) -> None:
        self._came.clear()
        self._waiting.clear()

    def count_step(self, dense_bytes: int | None = None) -> None:
        """A step of training has ended; ``dense_bytes``: of its gradients, by default those of all tensors."""
        self.stats.steps += 1
        self.stats.dense_bytes += self._dense_bytes if dense_bytes is None else dense_bytes

    def take(self, like: Tensor) -> Tensor:
        """An uninitialised tensor like this one, to be filled and given to the coming step."""
        return self.worker.workspace.take(tuple(like.shape), like.dtype, like.device)

    @torch.no_grad()
    def start_alike(self, tensors: Iterable[Tensor]) -> None:
        """Copies rank 0's numbers into these tensors, of whatever dtype, on all ranks."""
        for x in tensors:
            if x.numel():
                mine = x.detach().contiguous().view(-1).view(torch.uint8)
                x.copy_(self._transport.run(Broadcast(mine, 0)).view(x.dtype).view(x.shape))

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

    def switch(self, method: Policy | Method[Any] | str) -> None:
        """From the next step on another method or policy. What memories owe is added to the next tensors.

        Raises:
            FingerprintMismatch: the ranks switch to different methods. They go on as before then.
        """
        self._check_open()
        policy = Policy.of(method)
        groups, group_policy = form_groups(self.like, policy, self.granularity, self._bucket_bytes)
        self._agree(policy)
        if groups == self.groups:
            self.worker.switch(group_policy)
        else:
            owed = regroup(self.worker.settle(), self.groups, groups)
            self.worker.switch(group_policy)
            self.worker.owe(owed)
        self.groups = groups
        self._group_of = {name: group for group in groups for name in group.members}

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on, as plain containers of tensors. Each rank saves and loads its own.

        :func:`grace.state.flat` makes numpy arrays of it.
        """
        groups = {group.name: list(group.members) for group in self.groups}
        return {**self.worker.state_dict(), "granularity": self.granularity, "groups": groups}

    def load_state_dict(
        self, saved: Any, also: Callable[[Mapping[str, Any]], Mapping[str, object]] | None = None
    ) -> None:
        """Goes on where ``saved`` stopped, under the same method, tensors and number of workers. All ranks call it, each
        with its own state; either all of them load, or none.

        Args:
            saved: what :meth:`state_dict` gave.
            also: reads what an adapter has put beside it, without changing anything, and returns what all ranks must have
                in common of that, by what it is.

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
        """All ranks tell whether they can load a state (``problem``: why not), and what their states must have in common.

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
        """The state of rank ``rank`` of ``world``, from what its :meth:`state_dict` gave; nothing changes.

        Raises:
            StateError: it does not fit.
        """
        groups = {group.name: list(group.members) for group in self.groups}
        if not isinstance(saved, Mapping) or saved.get("groups") != groups:
            was = saved.get("granularity") if isinstance(saved, Mapping) else saved
            raise StateError(
                f"the state was saved with granularity={was!r} and other groups of parameters; "
                f"this is granularity={self.granularity!r}"
            )
        return WorkerState.read(saved, rank, world, self.worker.policy, self._group_tensors())

    def _group_tensors(self) -> dict[str, Tensor]:
        """A tensor like each group's; on the CPU, where nobody says where."""
        like = {name: torch.empty(x.shape, dtype=x.dtype) if x.is_meta else x for name, x in self.like.items()}
        return {group.name: group.like(like) for group in self.groups}

    def begin_state(self, step: int, seed: int, shared: Mapping[str, tuple[str, list[Any]]]) -> WorkerState:
        """A fresh state at step ``step``, with what is ``shared`` where the method is the same; see
        :meth:`grace.run.saved.WorkerState.shared`.

        Raises:
            StateError: what is shared does not fit.
        """
        states, like = {}, self._group_tensors()
        for name, (text, parts) in shared.items():
            method = self.worker.policy.method_for(name, like[name], step) if name in like else None
            if method is not None and spell(method) == text:
                fresh = method.init(like[name])
                states[name] = (method, restore_shared(fresh, method.kinds(fresh), list(parts), name))
        return WorkerState(step, seed, states, {})

    def adopt(self, state: WorkerState, debts: Mapping[str, Tensor]) -> None:
        """Goes on from there, with ``debts`` to parameters, which are added to the next tensors."""
        alone = [Group(name, (name,), (tuple(x.shape),)) for name, x in self.like.items()]
        owed = regroup({name: x for name, x in debts.items() if bool(x.any())}, alone, self.groups)
        self.worker.adopt(replace(state, owed=owed))

    def run(self, exchange: Exchange[T]) -> T:
        """Runs an exchange that is no step, and is not counted. All ranks call it."""
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
