"""Local steps: ``local(model, optimizer, "qsparse:ratio=0.01", every=4)``, and the ranks exchange every fourth step only.

Each rank trains a replica of its own with a plain optimizer; no gradient is exchanged. At the end of a window of H steps

``delta = x_ref - x_local;  x_ref -= mean over ranks of what the method sent of delta;  x_local = x_ref``

so that the replicas are the same bits again. delta is in units of the parameters: the learning rate is in it already.
Where parameters are 16 bits wide, x_ref and delta are float32: x_local starts at the rounded x_ref, and delta is counted from
there, so that moves smaller than a rounding add up in x_ref. Basu et al., "Qsparse-local-SGD", NeurIPS 2019, arXiv 1906.02367.
With ``warmup_steps`` it is post-local SGD (Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020, arXiv
1808.07217): in these first steps the mean of the gradients is what the optimizer of each rank applies, so that momenta, too,
are the same on all ranks.

The model is a plain module: DistributedDataParallel would need ``no_sync()`` around every backward pass in the user's loop.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from grace.adapters.buckets import fill_buckets
from grace.adapters.choosing import Choosing, read_choice
from grace.adapters.trained import find_trained, list_replicated, zero_nonfinite_state
from grace.adapters.warmup import average_gradients
from grace.adapters.window import WindowCheckpoint, read_window
from grace.auto.settings import Auto
from grace.auto.site import Site
from grace.contract.method import Method
from grace.errors import ConfigurationError, GraceError, StateError, out_of_range
from grace.registry.adaptive import Adaptive
from grace.registry.policy import Policy
from grace.run.checkpoint import Memories
from grace.run.optimizer import Settings, read_settings
from grace.run.options import OnDifference, Options
from grace.run.saved import OwnState
from grace.run.session import Session
from grace.run.steps import Steps
from grace.transports.base import Transport
from grace.transports.choose import transport_for_handle
from grace.transports.torch_distributed import TorchDistributed

if TYPE_CHECKING:
    from torch.distributed.checkpoint.stateful import Stateful


class LocalSteps(Choosing):
    """Local steps at work on one model and its optimizer. Made by :func:`local`; all ranks call its methods alike."""

    _at_work: ClassVar[weakref.WeakSet[torch.optim.Optimizer]] = weakref.WeakSet()

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        method: Policy | Method[Any] | Auto | Adaptive | str,
        options: Options,
        *,
        every: int,
        warmup_steps: int = 0,
        automatic: bool = True,
        group: dist.ProcessGroup | None = None,
        transport: str | Transport | None = "auto",
    ):
        for name, value, least in (("every", every, 1), ("warmup_steps", warmup_steps, 0)):
            if type(value) is not int or value < least:
                raise out_of_range("local", name, value, f"a whole number >= {least}")
        if optimizer in self._at_work:
            raise ConfigurationError("this optimizer already takes local steps; use handle.detach() first")
        self._model, self._optimizer = model, optimizer
        self._parameters = find_trained(model, optimizer)
        self.every, self.warmup_steps = every, warmup_steps
        auto, fixed, more = read_choice(method)
        knobs = {"every": every, "warmup_steps": warmup_steps, "automatic": automatic, **more}
        self._reference = {
            name: torch.empty(p.shape, dtype=torch.promote_types(p.dtype, torch.float32), device=p.device)
            for name, p in self._parameters.items()
        }
        if group is not None and transport not in (None, "auto"):
            raise ConfigurationError("group= and transport= both say which ranks take part; give one of them")
        over = transport_for_handle(transport or "auto") if group is None else TorchDistributed.of_same_ranks(group)
        session = Session(self._reference, fixed, over, options, knobs=knobs, repairs=True)
        super().__init__(Steps(session, counted=False))
        self.lr = 1.0  # delta is in units of the parameters, and so is what a memory owes of it
        self._total = self._taken = 0  # since the start; since the ranks last synchronized
        self._session.broadcast_(model.parameters())
        for name, p in self._parameters.items():
            self._reference[name].copy_(p.detach())
        self._buckets = fill_buckets(self._reference, options.bucket_bytes)
        self._begin_auto(auto)
        self._check_optimizer()
        self._averaged = False  # the gradients of the coming step of the warm-up
        self._hook: RemovableHandle | None = None
        self._hook_before: RemovableHandle | None = None
        if automatic:
            self._hook = optimizer.register_step_post_hook(lambda *_: self.step())
            if warmup_steps:
                self._hook_before = optimizer.register_step_pre_hook(self._before_step)
        self._open = True
        self._at_work.add(optimizer)

    def _settings(self) -> Settings | None:
        """A learning rate of 1: what is exchanged is in units of the parameters, and applied as it is."""
        return replace(read_settings(self._optimizer), lr=1.0)

    def _site(self) -> Site:
        """A round, a window and its exchange, is to ``auto`` what a step is elsewhere."""
        note = (
            f"a step here is a round: {self.every} local steps and their exchange; that a method may be used rests on runs "
            "that exchanged gradients in each step"
        )
        return replace(Site.of(self._session), note=note)

    # ---- during training --------------------------------------------------------------------------------------------
    def step(self) -> None:
        """Counts a step of the optimizer. Its hook calls this, unless ``automatic=False``; then the training loop does, after
        each step, even one that a gradient scaler has skipped.

        Raises:
            GraceError: a step of the warm-up before which :meth:`average_gradients` was not called.
        """
        self._check_open()
        warms_up = self.warms_up
        if warms_up and not self._averaged:
            error = GraceError(
                f"step {self._total + 1} of a warm-up of {self.warmup_steps} has applied this rank's own gradients: call "
                "handle.average_gradients() after the backward pass, before the optimizer or the scaler steps"
            )
            self._session.close(error)  # ranks that wait for this one hear of it
            raise error
        self._total += 1
        self._taken += 1
        self._session.count_step(sum(p.numel() * p.element_size() for p in self._parameters.values()))
        if warms_up:
            self._end_warmup_step()
        elif self._taken >= self.every:
            self.sync()
        self._session.logs.report(self._total)

    @property
    def warms_up(self) -> bool:
        """True if the coming step is one of the warm-up, which averages gradients."""
        return self._total < self.warmup_steps

    def average_gradients(self) -> None:
        """During the warm-up, replaces all gradients by their means over the ranks, once in a step; does nothing after it. The
        optimizer's hook calls it; call it before, to clip means, or before a gradient scaler looks at them. What no rank used
        keeps None.

        Raises:
            InputError: a sparse gradient. TransportError: a collective failed; no gradient may be used then.
        """
        self._check_open()
        if self._averaged or not self.warms_up:
            return
        try:
            find_trained(self._model, self._optimizer, known=self._parameters)
            self._session.replicas.note_parameters(self._reference.values())
            average_gradients(self._session, self._parameters, self._buckets)
        except BaseException as error:
            self._session.close(error)  # ranks that wait for this one hear of it
            raise
        self._averaged = True

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is not None and self.warms_up:
            raise ConfigurationError(
                "optimizer.step(closure) in the warm-up: the closure computes gradients that are not averaged; legal: "
                "gradients first, then optimizer.step(), or warmup_steps=0"
            )
        self.average_gradients()

    @torch.no_grad()
    def _end_warmup_step(self) -> None:
        """All ranks have applied the same means: x_ref is where they are, but for tensors that became inf or NaN."""
        for name, p in self._parameters.items():
            if bool(p.isfinite().all()):
                self._reference[name].copy_(p)
            else:
                p.copy_(self._reference[name])
                zero_nonfinite_state(self._optimizer, p)
                self.stats.nonfinite += 1
        self._session.advance()
        self._session.repair(
            lambda: [*self._reference.values(), *list_replicated(self._parameters.values(), self._optimizer)]
        )
        self._taken, self._averaged = 0, False
        self._irregular()

    @torch.no_grad()
    def sync(self) -> None:
        """Ends the window now, for instance before an evaluation or at the end of training. Does nothing between windows.

        Raises:
            TransportError: a collective failed. The model and x_ref are as they were before, and so are the memories, but for
            those of buckets that ``auto`` had exchanged.
        """
        self._check_open()
        if self.synchronized:
            return
        try:
            find_trained(self._model, self._optimizer, known=self._parameters)
        except BaseException as error:
            self._session.close(error)  # ranks that wait for this one hear of it
            raise
        counted, spoiled = self.stats.nonfinite, 0
        self._session.replicas.note_parameters(self._reference.values())
        means = self._exchange()
        for name, p in self._parameters.items():
            reference = self._reference[name]
            moved = reference - means[name]
            if bool(moved.isfinite().all()):
                reference.copy_(moved)
            else:  # on all ranks alike
                spoiled += 1
                zero_nonfinite_state(self._optimizer, p)
        self._session.repair(self._reference.values)
        for name, p in self._parameters.items():
            p.copy_(self._reference[name])
        self.stats.nonfinite = counted + spoiled
        self._taken = 0

    def _exchange(self) -> Mapping[str, Tensor]:
        """The means of what has changed: all at once, or as ``auto`` says."""
        if not self.chooses:
            make = self._session.scratch_like
            return self._steps.step({name: self._delta(name, p, make) for name, p in self._parameters.items()})
        if self._taken != self.every:
            self._irregular()
        # several exchanges: scratch memory would not last
        deltas = {name: self._delta(name, p, torch.empty_like) for name, p in self._parameters.items()}
        self._exchange_in_turn(self._buckets, deltas)
        return deltas

    def _delta(self, name: str, p: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
        """How far this replica has moved: x_ref, rounded as the parameter was, minus the parameter. ``make``: where to."""
        reference = self._reference[name]
        start = reference if reference.dtype == p.dtype else reference.to(p.dtype).to(reference.dtype)
        return torch.sub(start, p, out=make(reference))

    # ---- for the user -----------------------------------------------------------------------------------------------
    @property
    def synchronized(self) -> bool:
        """True if all replicas are the same: between windows, not within one."""
        return self._taken == 0

    @property
    def model(self) -> nn.Module:
        """The model, to evaluate or save, while its parameters are the same on all ranks.

        Raises:
            StateError: within a window.
        """
        if not self.synchronized:
            raise StateError(
                f"the replicas differ: this is step {self._taken} of a window of {self.every}; "
                "call handle.sync() on all ranks first"
            )
        return self._model

    def state_dict(self) -> dict[str, Any]:
        """State that the next step depends on, except the optimizer's state; also within a window, where it includes
        this rank's replica. Each rank saves and loads its own.
        """
        local = {} if self.synchronized else {name: p.detach().clone() for name, p in self._parameters.items()}
        return OwnState({
            **super().state_dict(),
            "steps": self._total,
            "taken": self._taken,
            "reference": {name: x.clone() for name, x in self._reference.items()},
            "local": local,
        })  # fmt: skip

    @torch.no_grad()
    def load_state_dict(self, saved: Any) -> None:
        """Goes on where ``saved`` stopped: it writes the model's parameters as well. All ranks call it, each with its own
        state; either all of them load, or none.

        Raises:
            StateError: one does not fit, or they do not belong together; on every rank. Nothing has changed then.
        """
        super().load_state_dict(saved)
        self._total, self._taken = saved["steps"], saved["taken"]
        for name, p in self._parameters.items():
            self._reference[name].copy_(saved["reference"][name])
            p.copy_(saved["local" if self._taken else "reference"][name])

    def _load(self, saved: Any) -> None:
        read = functools.partial(read_window, every=self.every, reference=self._reference, replica=self._parameters)
        self._session.load_state_dict(saved, also=read)

    def checkpoint(self, memories: Memories = "mean", workers: int | None = None, *, whole: bool = False) -> Stateful:
        """For ``torch.distributed.checkpoint.save`` and ``load``, by all ranks, between windows; loads on any number of
        workers. It holds x_ref, and loading writes it into the model's parameters. The optimizer's state is each rank's own.

        Args:
            memories: "mean" or "all", as for :meth:`grace.adapters.handle.Handle.checkpoint`.
            workers: for "all", how many saved it.
            whole: whether rank 0's ``state_dict()`` holds all that is saved.

        Raises:
            StateError: within a window.
        """
        self._check_open()
        if not self.synchronized:
            raise StateError(
                f"the replicas differ: this is step {self._taken} of a window of {self.every}; call handle.sync() on all "
                "ranks first. handle.state_dict() is all that one rank has, within a window too"
            )
        return WindowCheckpoint(
            self._session, memories, workers, whole, chooser=self._chooser, steps=self._total, reference=self._reference,
            go_on=self._go_on,
        )  # fmt: skip

    @torch.no_grad()
    def _go_on(self, steps: int, reference: Mapping[str, Tensor]) -> None:
        """Begins a window at x_ref."""
        self._total, self._taken = steps, 0
        for name, p in self._parameters.items():
            p.copy_(self._reference[name].copy_(reference[name]))

    def detach(self) -> None:
        """The optimizer goes on alone. Within a window the replicas stay different: call :meth:`sync` first."""
        if not self._open:
            return
        self._open = False
        self._at_work.discard(self._optimizer)
        for hook in (self._hook, self._hook_before):
            if hook is not None:
                hook.remove()
        self._end_run()
        self._session.close()

    def _check_open(self) -> None:
        if not self._open:
            raise GraceError("this handle is detached; call local(...) again")
        if self.error is not None:
            raise self.error

    def __repr__(self) -> str:
        where = f"rank {self.rank} of {self.world} over {self.transport}"
        return f"<LocalSteps {where}, every {self.every} steps: {self._session.policy}>"


def local(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    method: Policy | Method[Any] | Auto | Adaptive | str,
    *,
    every: int,
    warmup_steps: int = 0,
    seed: int = Options.seed,
    check: bool = Options.check,
    check_replicas_every: int = Options.check_replicas_every,
    on_difference: OnDifference = Options.on_difference,
    checksum: bool = Options.checksum,
    local_world_size: int | None = Options.local_world_size,
    steps_per_epoch: int | None = Options.steps_per_epoch,
    automatic: bool = True,
    group: dist.ProcessGroup | None = None,
    transport: str | Transport | None = "auto",
) -> LocalSteps:
    """From now on each rank makes ``every`` steps of its own, then the ranks exchange what has changed. All call it alike.

    It starts with rank 0's parameters on all ranks. Buffers, such as the running averages of BatchNorm, and the state of
    the optimizer stay local; each rank keeps its own. All ranks must make the same number of steps.

    Args:
        model: a plain module, not wrapped.
        optimizer: what trains it; ``optimizer.step()`` ends a local step, and at the end of a window exchanges.
        method: as for :func:`grace.attach`; it gets the differences of the parameters, one tensor for each. "auto" chooses
            one for each ``bucket_bytes`` of them, by rounds: windows and their exchange.
        every: H, local steps in a window; 1 exchanges after each.
        warmup_steps: steps at the start in which gradients are averaged, uncompressed, before each rank applies them
            (post-local SGD).
        seed: of all random streams.
        check: compare all collectives between ranks before they start; slow, for debugging.
        check_replicas_every: exchanges from one comparison of the replicas to the next, >= 0; 0: none.
        on_difference: what replicas that differ lead to: ReplicasDifferError on all ranks ("error"), or copies of those that
            most ranks have, with a warning ("broadcast").
        checksum: whether payloads carry four bytes that are checked on receipt: for machines that flip bits.
        local_world_size: how many workers a machine has, >= 1: those of ``machine=local``, and the most that share memory; 1:
            none do. By default what GRACE_LOCAL_WORLD_SIZE says, or else the launcher.
        steps_per_epoch: synchronizations in an epoch, for schedules that count epochs.
        automatic: whether the optimizer's hook counts steps. If not, call ``handle.step()`` after each: with a gradient
            scaler, which may skip a step on one rank alone. In a warm-up, call ``handle.average_gradients()`` before each.
        group: the ranks; by default all. They get a process group of their own beside it.
        transport: between the ranks, in place of such a group: an object, or a name as for :func:`grace.transport`.

    Returns:
        A handle: ``stats``, ``synchronized``, ``sync()``, ``model``, ``state_dict()``, ``load_state_dict(s)``,
        ``checkpoint()``, ``step()``, ``average_gradients()``, ``detach()``.

    Raises:
        ConfigurationError: a wrapped model, an optimizer of other parameters, a knob out of range.
        InputError: a complex or otherwise unsuitable parameter, by name.
        FingerprintMismatch: ranks that differ in method, knobs or model, on every rank, within a minute.
    """
    options = Options(
        seed, steps_per_epoch=steps_per_epoch, check=check, check_replicas_every=check_replicas_every,
        on_difference=on_difference, checksum=checksum, local_world_size=local_world_size,
    )  # fmt: skip
    return LocalSteps(
        model, optimizer, method, options, every=every, warmup_steps=warmup_steps, automatic=automatic, group=group,
        transport=transport,
    )  # fmt: skip
