"""The part of an outer loop that is saved besides the memories, and how it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor

from grace.adapters.outer.fragments import Fragments
from grace.adapters.outer.presets import OuterSettings
from grace.adapters.sharded_checkpoint import ShardedCheckpoint
from grace.adapters.trained import part_of
from grace.errors import StateError
from grace.run.checkpoint import Checkpoint, Chooser, Memories, pack, unpack
from grace.run.saved import check_fits, read_count
from grace.run.session import Session


class Window:
    """The part of a checkpoint that is a loop's own, and the same on all ranks: such as theta and the outer momentum.

    Args:
        steps: those made so far.
        held: tensors, of any shapes, by the name that they have in the checkpoint, and their parameter's.
        go_on: called with the steps that were loaded, once the tensors are loaded.
    """

    def __init__(self, steps: int, held: Mapping[str, Mapping[str, Tensor]], go_on: Callable[[int], None]):
        self._steps, self._held, self._go_on = steps, held, go_on

    def save(self, place: Callable[[str, Tensor], Any]) -> dict[str, Any]:
        """The entries of a checkpoint; ``place`` makes what is saved of a copy of the tensor, of any shape, of a name."""
        held = self._held
        shared = {key: {name: place(name, x.clone()) for name, x in held[key].items()} for key in held}
        return {"window": pack({"steps": self._steps}), **shared}

    def read(self, saved: Any) -> dict[str, int]:
        """Reads these entries, without changing anything, and returns what all ranks must have in common of them.

        Raises:
            StateError: they do not fit.
        """
        if missing := {"window", *self._held} - saved.keys():
            raise StateError(f"not a checkpoint of this loop: it lacks {', '.join(sorted(missing))}")
        window = unpack(saved["window"])
        steps = read_count(window.get("steps") if isinstance(window, dict) else None, "steps")
        for key, like in self._held.items():
            check_fits(key, self._parts(saved[key]), like)
        return {"steps": steps}

    def load(self, saved: Any) -> None:
        """Goes on from these entries, which :meth:`read` has read."""
        for key, held in self._held.items():
            parts = self._parts(saved[key])
            for name, x in held.items():
                x.copy_(parts[name])
        self._go_on(unpack(saved["window"])["steps"])

    @staticmethod
    def _parts(tensors: Any) -> Any:
        """The local tensors, where they are DTensors."""
        if not isinstance(tensors, Mapping):
            return tensors
        return {name: part_of(x) if isinstance(x, Tensor) else x for name, x in tensors.items()}


class WindowCheckpoint(Checkpoint):
    """As :class:`~grace.run.checkpoint.Checkpoint`, with what is a loop's own.

    Args:
        session, memories, workers, whole, chooser: as there.
        steps, held, go_on: as for :class:`Window`.
    """

    def __init__(
        self,
        session: Session,
        memories: Memories,
        workers: int | None,
        at_rank0: bool,
        *,
        chooser: Chooser,
        steps: int,
        held: Mapping[str, Mapping[str, Tensor]],
        go_on: Callable[[int], None],
    ):
        super().__init__(session, memories, workers, at_rank0, chooser)
        self._window = Window(steps, held, go_on)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), **self._window.save(lambda _, x: x)}

    def load_state_dict(self, saved: Any) -> None:
        super().load_state_dict(saved)
        self._window.load(saved)

    def _read_more(self, saved: Any) -> Mapping[str, object]:
        return self._window.read(saved)


class ShardedWindowCheckpoint(ShardedCheckpoint):
    """As :class:`~grace.adapters.sharded_checkpoint.ShardedCheckpoint`, with what is a loop's own.

    Args:
        session, parameters, shards, chooser: as there.
        steps, held, go_on: as for :class:`Window`.
    """

    def __init__(
        self,
        session: Session,
        parameters: Mapping[str, Any],
        shards: dist.ProcessGroup,
        chooser: Chooser,
        *,
        steps: int,
        held: Mapping[str, Mapping[str, Tensor]],
        go_on: Callable[[int], None],
    ):
        super().__init__(session, parameters, shards, chooser)
        self._window = Window(steps, held, go_on)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), **self._window.save(self._shard)}

    def load_state_dict(self, saved: Any) -> None:
        super().load_state_dict(saved)
        self._window.load(saved)

    def _read(self, saved: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
        about, owed = super()._read(saved)
        self._window.read(saved)
        return about, owed


def complete(saved: Any) -> Any:
    """A state of local steps, saved before there were other outer loops, with what it lacks of a state of today."""
    if not isinstance(saved, Mapping) or "alike" in saved:
        return saved
    return {**saved, "alike": [] if saved.get("taken") else [0], "momentum": {}, "flight": {}}


def read_window(
    saved: Mapping[str, Any],
    *,
    settings: OuterSettings,
    fragments: Fragments,
    reference: Mapping[str, Tensor],
    replica: Mapping[str, Tensor],
) -> dict[str, object]:
    """Reads a saved window; returns what all ranks must have in common of it, and changes nothing.

    Args:
        saved: the state.
        settings: those of this run.
        fragments: of this run.
        reference: tensors like theta.
        replica: tensors like the parameters.

    Raises:
        StateError: it does not fit.
    """
    if missing := {"steps", "taken", "alike", "reference", "momentum", "local", "flight"} - saved.keys():
        raise StateError(f"not a state of an outer loop: it lacks {', '.join(sorted(missing))}")
    steps, taken, alike = read_count(saved["steps"], "steps"), saved["taken"], saved["alike"]
    if type(taken) is not int or not 0 <= taken < settings.every:
        raise StateError(f"the state is {taken!r} steps into a window; windows of this run have every={settings.every}")
    places = range(len(fragments))
    if type(alike) is not list or any(type(place) is not int or place not in places for place in alike):
        raise StateError(f"the state says that fragments {alike!r} are the same; legal: some of {list(places)}")
    check_fits("reference", saved["reference"], reference)
    check_fits("momentum", saved["momentum"], reference if settings.momentum else {})
    if len(set(alike)) < len(fragments) or saved["local"]:
        check_fits("replica", saved["local"], replica)
    common: dict[str, object] = {"steps": steps, "steps into the window": taken, "fragments that are the same": alike}
    place = _read_flight(saved["flight"], reference, fragments)
    if place != (due := fragments.flying(taken)):
        raise StateError(
            f"the state is {taken} steps into a window with {_told(place)} in flight; with {settings.schedule} there is "
            f"{_told(due)} in flight then. Load it into a loop with the every, fragments and delay under which it was saved"
        )
    if place is not None:
        common["fragment in flight"] = place
    return common


def _read_flight(flight: Any, reference: Mapping[str, Tensor], fragments: Fragments) -> int | None:
    """The fragment that a state has in flight, if any."""
    if not isinstance(flight, Mapping) or (flight and flight.keys() != {"fragment", "means"}):
        raise StateError(f"what the state has in flight should be a fragment and its means, got {flight!r:.60}")
    if not flight:
        return None
    place = flight["fragment"]
    if type(place) is not int or place not in range(len(fragments)):
        raise StateError(f"the state has fragment {place!r} in flight; legal: one of {list(range(len(fragments)))}")
    check_fits("mean in flight", flight["means"], {name: reference[name] for name in fragments.names[place]})
    return place


def _told(fragment: int | None) -> str:
    return "nothing" if fragment is None else f"fragment {fragment}"
