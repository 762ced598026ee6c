"""The handle of an outer loop: inner steps are counted, and pseudo-gradients exchanged, beside the inner steps if wanted."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from grace.adapters.buckets import fill_buckets
from grace.adapters.choosing import read_choice
from grace.adapters.outer.flight import Flight
from grace.adapters.outer.fragments import Fragments
from grace.adapters.outer.islands import agree_within, compare_within, find_island
from grace.adapters.outer.presets import OuterMethod, OuterSettings
from grace.adapters.outer.resuming import Resuming
from grace.adapters.outer.state import OuterState
from grace.adapters.outer.warmup import average_gradients
from grace.adapters.taken import refuse_shared, release, take
from grace.adapters.trained import find_trained, list_replicated, part_of, zero_nonfinite_state
from grace.auto.settings import Auto, wanted
from grace.auto.site import Site
from grace.contract.wrapping import layers
from grace.errors import CompositionError, ConfigurationError, FingerprintMismatch, GraceError
from grace.registry import spell
from grace.registry.adaptive import Adaptive
from grace.registry.policy import Policy
from grace.run.lane import Inline, lane_for
from grace.run.optimizer import Settings, read_settings
from grace.run.options import Options
from grace.run.session import Session
from grace.run.steps import Steps
from grace.transports.base import Transport, closed_on_error
from grace.transports.choose import transport_between

_TAKEN = "is already trained in an outer loop, which exchanges it; use handle.detach() first"


class OuterLoop(Resuming):
    """An outer loop at work on one model and its optimizer. Made by :func:`outer` and :func:`local`; all ranks call its
    methods alike.

    ``settings``: H, fragments, overlap and outer optimizer.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        method: OuterMethod,
        options: Options,
        settings: OuterSettings,
        *,
        automatic: bool = True,
        offload: bool = False,
        group: dist.ProcessGroup | None = None,
        transport: str | Transport | None = "auto",
    ):
        if options.nonfinite != "propagate":
            raise ConfigurationError(
                f"outer: nonfinite={options.nonfinite!r}: all ranks drop a window that is not finite, and go on from theta; "
                "legal: 'propagate'"
            )
        self._model, self._optimizer, self.settings = model, optimizer, settings
        self._parameters = find_trained(model, optimizer)
        refuse_shared(self._parameters)
        auto, fixed, more = read_choice(method)
        self._refuse_auto(auto)
        self._island = find_island(self._parameters, group, settings)
        self._fragments = Fragments({name: p.numel() for name, p in self._parameters.items()}, settings)
        self._state = OuterState(self._parts, settings, offload)
        over = transport_between(group, transport)
        with closed_on_error(over):
            policy = options.read(fixed)
            _refuse_votes(policy, self._state.theta)
            knobs = {**asdict(settings), "automatic": automatic, **more}
            within = () if self._island is None else compare_within(self._island, {**knobs, "method": policy})
            knobs["ranks of a worker"] = within
        session = Session(self._like(offload), policy, over, options, knobs=knobs, repairs=True)
        with session.telling():
            if len(within) > 1:  # in all workers alike
                session.close()
                raise FingerprintMismatch(f"the ranks of a worker are configured differently: {' and '.join(within)}")
            super().__init__(Steps(session, counted=False))
            self.lr = 1.0  # pseudo-gradients are in units of the parameters, and so is what a memory owes of them
            self._total = self._taken = 0  # since the start; in this window
            self._alike = frozenset(range(len(self._fragments)))  # fragments that are where theta is, on all ranks
            self._flight: Flight | None = None
            self._session.broadcast_(part_of(p) for p in model.parameters())
            self._state.begin(self._parts)
            self._buckets = fill_buckets(self._state.theta, options.bucket_bytes)
            self._begin_auto(auto)
            self._check_optimizer()
        self._lane = lane_for(next(iter(self._parameters.values())).device) if settings.delay else Inline()
        self.stats.overlaps = self._lane.overlaps
        self._averaged = False  # the gradients of the coming step of the warm-up
        self._hook: RemovableHandle | None = None
        self._hook_before: RemovableHandle | None = None
        if automatic:
            self._hook = optimizer.register_step_post_hook(lambda *_: self.step())
            if settings.warmup_steps:
                self._hook_before = optimizer.register_step_pre_hook(self._before_step)
        self._open = True
        take(self, self._parameters.values(), _TAKEN)

    def _like(self, offload: bool) -> Mapping[str, Tensor]:
        """A tensor like each pseudo-gradient, on its device, which takes no room."""
        theta = self._state.theta
        if not offload:
            return theta
        return {
            name: torch.empty((), dtype=theta[name].dtype, device=p.device).expand(p.shape)
            for name, p in self._parts.items()
        }

    def _refuse_auto(self, auto: Auto | Adaptive | None) -> None:
        if auto is not None and (self.settings.fragments > 1 or self.settings.delay):
            raise ConfigurationError(
                f"outer: {auto} measures rounds in which training waits for the whole exchange; legal: a method of your own, "
                "or fragments=1 and delay=0"
            )

    def _settings(self) -> Settings | None:
        """A learning rate of 1: what is exchanged is in units of the parameters."""
        return replace(read_settings(self._optimizer), lr=1.0)

    def _site(self) -> Site:
        """A round, a window and its exchange, is to ``auto`` what a step is elsewhere."""
        note = (
            f"a step here is a round: {self.settings.every} local steps and their exchange; that a method may be used rests "
            "on runs that exchanged gradients in each step"
        )
        return replace(Site.of(self._session), note=note, beyond=("the changes of several local steps",))

    # ---- during training --------------------------------------------------------------------------------------------
    def step(self) -> None:
        """Counts a step of the optimizer. Its hook calls this, unless ``automatic=False``; then the training loop does, after
        each step, even one that a gradient scaler has skipped.

        Raises:
            GraceError: a step of the warm-up before which :meth:`average_gradients` was not called. What :meth:`sync` raises.
        """
        self._check_open()
        warms_up = self.warms_up
        if warms_up and not self._averaged:
            error = GraceError(
                f"step {self._total + 1} of a warm-up of {self.settings.warmup_steps} has applied this rank's own gradients: "
                "call handle.average_gradients() after the backward pass, before the optimizer or the scaler steps"
            )
            self._session.close(error)  # ranks that wait for this one hear of it
            raise error
        self._total += 1
        self._taken += 1
        self._alike = frozenset()
        self._session.count_step(sum(p.numel() * p.element_size() for p in self._parts.values()))
        if warms_up:
            self._end_warmup_step()
        else:
            self._follow_schedule()
        self._session.logs.report(self._total)

    def _follow_schedule(self) -> None:
        """Starts and ends the exchanges that are due at the end of this step."""
        fragments = self._fragments
        if (fragment := fragments.starting(self._taken)) is not None:
            self._launch(fragments.names[fragment], fragment)
        if fragments.ending(self._taken) is not None:
            self._land(self.settings.alpha)
        if self._taken == self.settings.every:
            self._taken = 0

    @property
    def warms_up(self) -> bool:
        """True if the coming step is one of the warm-up, which averages gradients."""
        return self._total < self.settings.warmup_steps

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
        with self._session.telling():
            find_trained(self._model, self._optimizer, known=self._parameters)
            self._session.replicas.note_parameters(self._state.theta.values())
            average_gradients(self._session, self._parameters, self._buckets)
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
        """All ranks have applied the same means: theta is where they are, but for tensors that became inf or NaN."""
        for name, p in self._parameters.items():
            if bool(p.isfinite().all()):
                self._state.begin({name: p})
            else:
                self._state.write(name, p)
                zero_nonfinite_state(self._optimizer, p)
                self.stats.nonfinite += 1
        self._session.advance()
        self._session.repair(
            lambda: [*self._state.tensors(), *list_replicated(self._parameters.values(), self._optimizer)]
        )
        self._end_window()
        self._averaged = False
        self._irregular()

    def sync(self) -> None:
        """Ends all windows now, for instance before an evaluation or at the end of training: applies what is in flight,
        exchanges what has changed since, and makes all replicas theta. Does nothing where they are.

        Raises:
            TransportError: a collective failed. The model and theta are as they were before, and so are the memories, but for
            those of buckets that ``auto`` had exchanged.
        """
        self._check_open()
        if self._flight is not None:
            self._land(self.settings.alpha)
        if not self.synchronized:
            apart = [part for place, part in enumerate(self._fragments.names) if place not in self._alike]
            wanted = {name for part in apart for name in part}
            self._launch(tuple(name for name in self._parameters if name in wanted), None)
            self._land(0.0)
        self._end_window()

    @torch.no_grad()
    def _launch(self, names: tuple[str, ...], fragment: int | None) -> None:
        """Starts the exchange of these pseudo-gradients. An error on a rank that has a shard alone comes where the exchange is
        landed: there the worker's other ranks wait for this one.
        """
        flight = Flight(names, fragment, self.stats.nonfinite)
        try:
            with self._session.telling():
                self._begin_flight(flight)
        except Exception as error:
            if self._island is None:
                raise
            flight.error = error
        self._flight = flight

    def _begin_flight(self, flight: Flight) -> None:
        find_trained(self._model, self._optimizer, known=self._parameters)
        if self.chooses and self._taken != self.settings.every:
            self._irregular()
        self._session.replicas.note_parameters(self._state.tensors())
        make = (
            torch.empty_like if self.chooses else self._session.scratch_like
        )  # several exchanges: scratch would not last
        parts, like = self._parts, self._session.like
        deltas = {name: self._state.delta(name, parts[name], make(like[name])) for name in flight.names}
        self._lane.submit(functools.partial(flight.run, functools.partial(self._exchange, deltas)))

    def _exchange(self, deltas: dict[str, Tensor]) -> Mapping[str, Tensor]:
        """The means of pseudo-gradients: all at once, or as ``auto`` says."""
        if self.chooses:
            self._exchange_in_turn(self._buckets, deltas)
            return deltas
        means = self._session.exchange(deltas, lr=self.lr)
        self._session.advance()
        return means

    @torch.no_grad()
    def _land(self, keep: float) -> None:
        """Waits for the exchange in flight, and applies its means; of its own parameters each rank keeps this share. A tensor
        that is not finite on some rank is dropped on all: theta and its momentum stay. Then all replicas return to theta, the
        other fragments, too, since what is not finite in one has spread to the others.
        """
        flight = self._flight
        assert flight is not None
        self.drain()
        self._flight = None
        self._agree(flight.error)  # before theta moves
        dropped, problem = list[str](), None
        try:
            dropped = [name for name in flight.names if not self._state.step(name, flight.means[name])]
            self._session.repair(self._state.tensors)
        except Exception as error:
            problem = error
        drops = self._agree(problem, bool(dropped))
        self.stats.nonfinite = flight.counted + len(dropped)
        if drops:  # on all ranks alike
            self._write_theta()
            for p in self._parameters.values():
                zero_nonfinite_state(self._optimizer, p)
            self._alike = frozenset(range(len(self._fragments)))
            return
        for name in flight.names:
            self._state.write(name, part_of(self._parameters[name]), keep)
        if flight.fragment is not None and not keep:
            self._alike |= {flight.fragment}

    def _agree(self, error: BaseException | None, dropped: bool = False) -> bool:
        """True if some rank of this worker, and so of each, has dropped a tensor.

        Raises:
            The error of this rank's exchange; of a worker of several ranks a TransportError on all, if there is an error
            on any: they would wait for each other.
        """
        if self._island is not None:
            with self._session.telling():
                return agree_within(self._island, error, dropped, next(iter(self._parts.values())).device)
        if error is not None:
            raise error
        return dropped

    # ---- for the user -----------------------------------------------------------------------------------------------
    @property
    def model(self) -> nn.Module:
        """The model, to evaluate or save, while its parameters are the same on all ranks.

        Raises:
            StateError: within a window.
        """
        self._check_synchronized()
        return self._model

    @contextlib.contextmanager
    def shared_model(self) -> Iterator[nn.Module]:
        """The model with theta in its parameters, to evaluate or save at any time, for as long as the block lasts: then the
        rank's own parameters are back. Nothing is exchanged. Do not train within.
        """
        own = {name: p.detach().clone() for name, p in self._parts.items()}
        self._write_theta()
        try:
            yield self._model
        finally:
            self._overwrite(own)

    def switch(self, method: OuterMethod) -> None:
        """Uses another method or policy from the next exchange on; see :meth:`grace.adapters.choosing.Choosing.switch`."""
        self.drain()
        self._refuse_auto(wanted(method))
        if not isinstance(method, Auto | Adaptive) and wanted(method) is None:
            _refuse_votes(self._session.options.read(method), self._state.theta)
        super().switch(method)

    def detach(self) -> None:
        """The optimizer goes on alone. Within a window the replicas stay different, and what is in flight is not applied: call
        :meth:`sync` first.
        """
        if not self._open:
            return
        self._open = False
        release(self)
        for hook in (self._hook, self._hook_before):
            if hook is not None:
                hook.remove()
        self._lane.close()
        self._lane = Inline()
        self._end_run()
        self._session.close()
        if self._flight is not None:
            self._flight.abandon()

    def __repr__(self) -> str:
        where = f"rank {self.rank} of {self.world} over {self.transport}"
        return f"<{type(self).__name__} {where}, every {self.settings.every} steps: {self._session.policy}>"


def _refuse_votes(policy: Policy, like: Mapping[str, Tensor]) -> None:
    """Refuses methods whose answer is the sign of a vote: it would move each parameter by 1, however far the replicas moved.

    Raises:
        CompositionError: names the method, and a parameter that would get it.
    """
    for name, x in like.items():
        for method in policy.methods_for(name, x):
            if any(getattr(layer, "aggregation", "mean") == "majority" for layer in layers(method)):
                raise CompositionError(
                    f"outer: {spell(method)} takes a majority vote, whose answer has no magnitude, and would move each number "
                    f"of {name!r} by 1; legal: methods that average, such as efsignsgd"
                )
