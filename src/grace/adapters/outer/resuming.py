"""State of an outer loop: saved by each rank, or by all together, and where it goes on."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from grace.adapters.choosing import Choosing
from grace.adapters.outer.flight import Flight
from grace.adapters.outer.fragments import Fragments
from grace.adapters.outer.islands import reshard
from grace.adapters.outer.presets import OuterSettings
from grace.adapters.outer.saved import ShardedWindowCheckpoint, WindowCheckpoint, complete, read_window
from grace.adapters.outer.state import OuterState
from grace.adapters.trained import part_of
from grace.errors import ConfigurationError, GraceError, StateError
from grace.run.checkpoint import Memories
from grace.run.lane import Lane
from grace.run.saved import OwnState

if TYPE_CHECKING:
    from torch.distributed.checkpoint.stateful import Stateful


class Resuming(Choosing):
    """The part of an outer loop that knows where it is, saves that, and goes on from there. To derive from."""

    settings: OuterSettings
    _model: nn.Module
    _parameters: dict[str, nn.Parameter]
    _state: OuterState
    _fragments: Fragments
    _island: dist.ProcessGroup | None
    _open: bool
    _total: int  # steps since the start
    _taken: int  # steps in this window
    _alike: frozenset[int]  # fragments that are where theta is, on all ranks
    _flight: Flight | None
    _lane: Lane

    def drain(self) -> None:
        """Returns once the exchange in flight, if there is one, has ended. Its mean is applied when it is due."""
        if self._flight is not None:
            with self._waiting():
                self._lane.drain()

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """Training waits for an exchange: it counts as exposed, where it does not anyway."""
        with self.stats.wait() if self.stats.overlaps else contextlib.nullcontext():
            yield

    @property
    def _parts(self) -> dict[str, Tensor]:
        """The part of each parameter that this rank has."""
        return {name: part_of(p) for name, p in self._parameters.items()}

    @property
    def synchronized(self) -> bool:
        """True if all replicas are the same: between windows, not within one; with ``alpha`` or fragments only after
        :meth:`sync`.
        """
        return len(self._alike) == len(self._fragments)

    def _check_synchronized(self, hint: str = "") -> None:
        if not self.synchronized:
            raise StateError(
                f"the replicas differ: this is step {self._taken} of a window of {self.settings.every}; call handle.sync() on "
                f"all ranks first{hint}"
            )

    def _end_window(self) -> None:
        """All replicas are theta."""
        self._taken, self._alike = 0, frozenset(range(len(self._fragments)))

    @torch.no_grad()
    def _write_theta(self) -> None:
        for name, p in self._parts.items():
            self._state.write(name, p)
        if self._island is not None:
            reshard(self._model)

    @torch.no_grad()
    def _overwrite(self, replica: Mapping[str, Tensor]) -> None:
        """Puts these in place of the parameters of this rank."""
        for name, p in self._parts.items():
            p.copy_(replica[name])
        if self._island is not None:
            reshard(self._model)

    def state_dict(self) -> dict[str, Any]:
        """State that the next step depends on, except the optimizer's state; also within a window, where it includes
        this rank's replica. It waits for the exchange in flight, and has the mean that came of it. Each rank saves and loads
        its own.
        """
        self.drain()
        local = {} if self.synchronized else {name: p.detach().clone() for name, p in self._parts.items()}
        flight = {}
        if self._flight is not None:
            if self._flight.error is not None:
                raise self._flight.error
            flight = {
                "fragment": self._flight.fragment,
                "means": {name: x.clone() for name, x in self._flight.means.items()},
            }
        return OwnState({
            **super().state_dict(),
            "steps": self._total,
            "taken": self._taken,
            "alike": sorted(self._alike),
            "reference": {name: x.clone() for name, x in self._state.theta.items()},
            "momentum": {name: x.clone() for name, x in self._state.momentum.items()},
            "local": local,
            "flight": flight,
        })  # fmt: skip

    @torch.no_grad()
    def load_state_dict(self, saved: Any) -> None:
        """Goes on where ``saved`` stopped: it writes the model's parameters as well. All ranks call it, each with its own
        state; either all of them load, or none.

        Raises:
            StateError: one does not fit, or they do not belong together; on every rank. Nothing has changed then.
        """
        self.drain()
        saved = complete(saved)
        super().load_state_dict(saved)
        self._total, self._taken = saved["steps"], saved["taken"]
        self._alike = frozenset(saved["alike"])
        for held, kept in ((self._state.theta, "reference"), (self._state.momentum, "momentum")):
            for name, x in held.items():
                x.copy_(saved[kept][name])
        self._overwrite(saved["local"] or saved["reference"])
        self._flight = None
        if flight := saved["flight"]:
            means = {name: x.to(self._session.like[name].device) for name, x in flight["means"].items()}
            fragment = flight["fragment"]
            self._flight = Flight(self._fragments.names[fragment], fragment, self.stats.nonfinite, means)

    def _load(self, saved: Any) -> None:
        read = functools.partial(
            read_window, settings=self.settings, fragments=self._fragments, reference=self._state.theta,
            replica=self._parts,
        )  # fmt: skip
        self._session.load_state_dict(saved, also=read)

    def checkpoint(self, memories: Memories = "mean", workers: int | None = None, *, whole: bool = False) -> Stateful:
        """For ``torch.distributed.checkpoint.save`` and ``load``, by all ranks, between windows; loads on any number of
        workers. It holds theta and the outer momentum, and loading writes theta into the model's parameters. The optimizer's
        state is each rank's own.

        Args:
            memories: "mean" or "all", as for :meth:`grace.adapters.handle.Handle.checkpoint`.
            workers: for "all", how many saved it.
            whole: whether rank 0's ``state_dict()`` holds all that is saved.
                Of a sharded model all of it is sharded as its parameters are; there, leave these three as they are.

        Raises:
            StateError: within a window. ConfigurationError: another kind of checkpoint of a sharded model.
        """
        self._check_open()
        self._check_synchronized(". handle.state_dict() is all that one rank has, within a window too")
        if self._island is not None:
            if memories != "mean" or workers is not None or whole:
                raise ConfigurationError("checkpoint of a sharded model; legal: handle.checkpoint() without arguments")
            return ShardedWindowCheckpoint(
                self._session, self._parameters, self._island, self._chooser, steps=self._total, held=self._state.held,
                go_on=self._go_on,
            )  # fmt: skip
        return WindowCheckpoint(
            self._session, memories, workers, whole, chooser=self._chooser, steps=self._total, held=self._state.held,
            go_on=self._go_on,
        )  # fmt: skip

    def _go_on(self, steps: int) -> None:
        """Begins a window at theta."""
        self._total = steps
        self._end_window()
        self._write_theta()

    def _check_open(self) -> None:
        if not self._open:
            raise GraceError("this handle is detached; begin another outer loop")
        if self.error is not None and (self._island is None or self._flight is None):
            raise self.error  # otherwise where the flight lands: there the worker's other ranks wait for this one
