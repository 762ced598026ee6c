"""The state of an optimizer that exchanges by itself: saved by each rank, or by all together, and where it goes on."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from grace.adapters.torch_optimizer import KEY
from grace.adapters.trained import is_split
from grace.errors import GraceError, StateError
from grace.optim.checkpoint import OptimizerCheckpoint
from grace.optim.parts import local, zeros
from grace.run.checkpoint import Memories
from grace.run.saved import OwnState, check_fits
from grace.run.session import Session


class SavedOptimizer(torch.optim.Optimizer):
    """The part of an optimizer that knows its state, saves it, and goes on from there. To derive from.

    ``steps`` are those that counted.
    """

    steps: int
    passing: ClassVar[frozenset[str]] = frozenset()  # tensors of a parameter's shape that its state has at times
    _session: Session | None = None
    _names: dict[Tensor, str]

    @property
    def session(self) -> Session:
        """The exchange of this rank with the others.

        Raises:
            GraceError: it has not begun.
        """
        if self._session is None:
            raise GraceError("this optimizer has not begun to exchange")
        return self._session

    def _counters(self) -> dict[str, Any]:
        """Numbers that the next step depends on, the same on all ranks; plain ones, for a checkpoint."""
        return {"steps": self.steps}

    def _set_counters(self, counters: Mapping[str, Any]) -> None:
        self.steps = counters["steps"]

    def _each(self) -> Iterator[tuple[str, Tensor, dict[str, Any], dict[str, Any]]]:
        """By parameter: its name, this rank's part of it, its group, and its state, as tensors of this rank."""
        for entry in self.param_groups:
            for p in entry["params"]:
                if (name := self._names.get(p)) is not None:
                    yield name, local(p), entry, self.state[p]

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's own, and under "grace" the memories of this rank and the counters. Each rank saves its own."""
        more = {"optimizer": type(self).__name__, "counters": self._counters(), "session": self.session.state_dict()}
        return {**super().state_dict(), KEY: OwnState(more)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where ``state_dict`` stopped, with the same bits. All ranks call it, each with its own; either all load, or
        none.

        Raises:
            StateError: on all ranks, if one does not fit, or they do not belong together: another optimizer, other parameters,
                another method or number of ranks. Nothing has changed then.
        """
        saved = state_dict.get(KEY)
        inner = saved.get("session") if isinstance(saved, Mapping) else None
        if not isinstance(inner, Mapping):
            self.session.compare_loads(StateError(f"not a state of grace.optim: it lacks {KEY!r}"), {})
        self.session.load_state_dict(inner, also=functools.partial(self._read, state_dict, saved))
        devices = {p: {key: x.device for key, x in self.state[p].items()} for p in self._names}
        super().load_state_dict({key: value for key, value in state_dict.items() if key != KEY})
        for p, held in self._pair(state_dict):  # torch has cast what it loaded to the parameter's dtype
            for key, value in held.items():
                if isinstance(value, Tensor):
                    value = value.to(devices.get(p, {}).get(key, p.device), copy=True)
                self.state[p][key] = value
        assert isinstance(saved, Mapping)
        self._set_counters(saved["counters"])

    def _read(self, state: Mapping[str, Any], saved: Any, _: Mapping[str, Any]) -> dict[str, object]:
        """Reads what is beside the memories; changes nothing."""
        if not isinstance(saved, Mapping) or not isinstance(saved.get("counters"), Mapping):
            raise StateError(f"not a state of grace.optim: it lacks {KEY!r} with counters")
        if saved.get("optimizer") != type(self).__name__:
            raise StateError(f"the state is of {saved.get('optimizer')}, this is {type(self).__name__}")
        counters = dict(saved["counters"])
        if counters.keys() != self._counters().keys():
            raise StateError(f"the state counts {sorted(counters)}, this optimizer {sorted(self._counters())}")
        sizes = [len(entry["params"]) for entry in self.param_groups]
        if (given := [len(entry["params"]) for entry in state.get("param_groups", ())]) != sizes:
            raise StateError(f"the state has groups of {given} parameters, this optimizer of {sizes}")
        tensors, like = dict[str, Tensor](), self.shared_state()
        for p, held in self._pair(state):
            if (name := self._names.get(p)) is not None:
                tensors.update({f"{name}/{key}": x for key, x in held.items() if isinstance(x, Tensor)})
                like.update({f"{name}/{key}": zeros(p) for key in self.passing.intersection(held)})
                for key in self.passing - held.keys():
                    like.pop(f"{name}/{key}", None)
        check_fits("state", tensors, like)
        return {f"counter {key}": value for key, value in counters.items()}

    def _pair(self, state: Mapping[str, Any]) -> Iterator[tuple[Tensor, Mapping[str, Any]]]:
        """Each parameter with what a saved state has for it."""
        for entry, given in zip(self.param_groups, state["param_groups"], strict=True):
            for p, place in zip(entry["params"], given["params"], strict=True):
                if place in state["state"]:
                    yield p, state["state"][place]

    def checkpoint(self, memories: Memories = "mean", workers: int | None = None, *, whole: bool = False) -> Any:
        """For ``torch.distributed.checkpoint.save`` and ``load``, by all ranks, between steps; loads on any number of workers,
        which then owe the mean of what was owed. Parameters are saved with the model.

        Args:
            memories: "mean" or "all", as for :meth:`grace.adapters.handle.Handle.checkpoint`.
            workers: for "all", how many saved it.
            whole: whether rank 0's ``state_dict()`` holds all that is saved.

        Raises:
            StateError: the parameters are DTensors, or the replicas differ at this step.
        """
        if any(map(is_split, self._names)):
            raise StateError(
                "parameters are DTensors, and each rank owes to its own shard: save optimizer.state_dict() on each rank, and "
                "load it on as many"
            )
        return OptimizerCheckpoint(self.session, memories, workers, whole, optimizer=self)

    def shared_state(self) -> dict[str, Tensor]:
        """The state that is the same on all ranks, by ``name/key``."""
        return {
            f"{name}/{key}": x
            for name, _, _, state in self._each()
            for key, x in state.items()
            if isinstance(x, Tensor)
        }

    def adopt(self, counters: Mapping[str, Any], state: Mapping[str, Tensor]) -> None:
        """Goes on from counters and the state that is the same on all ranks, as :meth:`shared_state` gave it."""
        self._set_counters(counters)
        for name, _, _, held in self._each():
            for label, x in state.items():
                owner, _, key = label.rpartition("/")
                if owner == name:
                    held[key].copy_(x)
