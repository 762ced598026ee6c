"""A session's state: what the next step depends on, saved and loaded by all ranks alike."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grace.errors import StateError
from grace.registry import spell
from grace.run.groups import Group, regroup
from grace.run.options import Options
from grace.run.saved import WorkerState, check_form
from grace.run.stats import Stats
from grace.run.worker import Worker
from grace.transports.agreement import compare_loads
from grace.transports.base import Transport


class Keeping:
    """Saving, loading and undoing of state, as a base class of :class:`grace.run.session.Session`."""

    like: dict[str, Tensor]
    groups: Sequence[Group]
    options: Options
    worker: Worker
    rank: int
    world: int
    stats: Stats
    group_of: Mapping[str, Group]
    _transport: Transport

    def settle(self, dropped: Collection[str] = (), waiting: Collection[str] = ()) -> None:
        """Says, before anything else is exchanged, what became of the means that were handed out: all ranks say the same. It
        is for whoever has called ``worker.keep_unapplied()``.

        Args:
            dropped: tensors whose means nobody has applied, nor will: what their exchanges changed is undone. A group that is
                exchanged as one is dropped if all its members are.
            waiting: those whose means are still to be applied, or to be dropped. All others' were applied.
        """
        if not self.worker.unapplied:
            return
        waits = {group.name for name in waiting if (group := self.group_of.get(name)) is not None}
        drops = {group.name for name in dropped if (group := self.group_of.get(name)) is not None} - waits
        if drops and len(self.group_of) > len(self.groups):
            gone = set(dropped)
            drops = {group.name for group in self.groups if group.name in drops and gone.issuperset(group.members)}
        self.stats.dropped += self.worker.settle(drops, waits)

    def state_dict(self) -> dict[str, Any]:
        """State that the next step depends on, as plain containers of tensors. Each rank saves and loads its own.

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
        like = {
            name: torch.empty(x.shape, dtype=x.dtype, device="cpu") if x.is_meta else x for name, x in self.like.items()
        }
        return {group.name: group.like(like) for group in self.groups}

    def methods(self) -> dict[str, str]:
        """By name of each tensor that is exchanged, the method that it has in this step, as text; outside of a trial."""
        home, step, texts = self.worker.home, self.worker.step, {}
        tensors = self.group_tensors()
        for group in self.groups:
            text = spell(home.method_for(group.name, tensors[group.name], step))
            texts.update(dict.fromkeys(group.members, text))
        return {name: texts[name] for name in self.like}

    def begin_state(self, step: int, seed: int, shared: Mapping[str, tuple[str, list[Any]]]) -> WorkerState:
        """A fresh state at step ``step``, with what is ``shared`` where the method is the same; see
        :meth:`grace.run.saved.WorkerState.shared_parts`.

        Raises:
            StateError: what is shared does not fit.
        """
        return WorkerState.begin(step, seed, shared, self.worker.policy, self.group_tensors())

    def adopt(self, state: WorkerState, debts: Mapping[str, Tensor]) -> None:
        """Goes on from ``state``, with ``debts`` to parameters, each of its parameter's shape, which are added to the next
        tensors.
        """
        alone = [Group(name, (name,), (tuple(x.shape),)) for name, x in self.like.items()]
        owed = regroup({name: x for name, x in debts.items() if bool(x.any())}, alone, self.groups)
        self.worker.adopt(replace(state, owed=owed))
