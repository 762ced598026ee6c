"""Tracks the means that an integration has handed out: an optimizer has applied them, or they were dropped.

- Applied: an optimizer that holds the parameter has stepped while it had its gradient.
- Dropped: the gradient was cleared (None, or zeros) before such a step, although some optimizer holds the parameter.
- Neither: it waits, and the next backward pass adds to it.

Of a parameter that no ``torch.optim.Optimizer`` holds, a clearing tells nothing by itself: somebody may have applied the
gradient by hand. It counts as applied; where the parameter has not changed as far as torch can tell, that is said once.

The backward pass of a captured step runs no Python: its means count as applied unless ``handle.replayed(applied=False)`` says
otherwise. Where the optimizer's step is not in the graph, and a replay passes without one, that is said once.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from grace.adapters.optimizer_steps import HeldParameters, listen, living, stepping
from grace.flags.capturing import capturing
from grace.run.session import Session

_log = logging.getLogger("grace")


class Applied:
    """Watches the parameters of one door, and tells its sessions.

    Args:
        sessions: that exchange the gradients.
        parameters: of any shapes, by name.
        optimizer: one that applies the means, if it is known; others are found.
    """

    def __init__(
        self,
        sessions: Sequence[Session],
        parameters: Mapping[str, Tensor],
        optimizer: torch.optim.Optimizer | None = None,
    ):
        self._sessions, self._parameters = sessions, dict(parameters)
        self._held = HeldParameters({p: name for name, p in parameters.items()})
        self._trained: set[str] = set()  # held by an optimizer
        self._known: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._wrappers: weakref.WeakSet[torch.optim.Optimizer] = (
            weakref.WeakSet()
        )  # within whose step another one steps
        self._handed: set[str] = set()  # of whose means the sessions have not heard what became
        self._moved: set[str] = set()
        self._dropped: set[str] = set()
        self._ready: dict[int, set[str]] = {}  # had a gradient when an optimizer's step began
        self._earlier: dict[int, set[str]] = {}  # of whose means it was not known then what became
        self._versions: dict[str, tuple[int, int | None]] = {}  # of parameter and gradient, at the end of a pass
        self._careful = self._searched = self._said = False
        self._replays: float = 0
        self._stepped_in_graph = self._stepped = False  # in a capture, and since the last replay
        if optimizer is not None:
            self._know(optimizer)
        listen(self)
        me = weakref.ref(self)
        for session in sessions:
            session.worker.keep_unapplied(lambda: _ask(me))
        if sessions:
            sessions[0].worker.on_replay = lambda applied: _tell_replay(me, applied)

    # ---- what optimizers do -----------------------------------------------------------------------------------------
    def will_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Notes which parameters have a gradient; see :mod:`grace.adapters.optimizer_steps`."""
        held = self._held.by(optimizer)
        if held:
            self._know(optimizer)
            self._ready[id(optimizer)] = {name for name, p in held.items() if p.grad is not None}
            self._earlier[id(optimizer)] = self._handed - self._moved - self._dropped

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Notes that the optimizer has applied what there was; see :mod:`grace.adapters.optimizer_steps`."""
        held = self._held.by(optimizer)
        if not held:
            return
        self._wrappers.update(stepping())
        if capturing():
            self._stepped_in_graph = True
        self._stepped = True
        ready = self._ready.pop(id(optimizer), set())
        self._earlier.pop(id(optimizer), None)
        skips = getattr(optimizer, "found_inf", None)  # a GradScaler leaves it to a fused optimizer to skip
        if isinstance(skips, Tensor) and skips.is_cpu and bool(skips):
            return
        self._moved |= ready
        if len(ready) < len(held):
            self._moved.update(name for name in held.keys() - ready if held[name].grad is not None)

    def _know(self, optimizer: torch.optim.Optimizer) -> None:
        held = self._held.by(optimizer)
        if held and optimizer not in self._known:
            self._known.add(optimizer)
            self._trained |= held.keys()

    # ---- what becomes of gradients ----------------------------------------------------------------------------------
    @property
    def undecided(self) -> bool:
        """True if there are means that were neither applied nor dropped, as far as is known."""
        return not self._handed <= self._moved

    def hand_out(self, names: Iterable[str], unused: Iterable[str] = ()) -> None:
        """These get means from a step that has begun; but what comes for those that are ``unused`` is dropped."""
        names = set(names)
        self._handed |= names
        self._dropped.update(unused)
        for earlier in self._earlier.values():
            earlier -= names

    def end(self) -> None:
        """The means are the parameters' gradients now."""
        if self._careful or len(self._trained) < len(self._parameters):
            grads = ((name, p, p.grad) for name, p in self._parameters.items())
            self._versions = {name: (p._version, None if g is None else g._version) for name, p, g in grads}

    def look(self, arrived: str | None = None) -> None:
        """Looks for gradients that were cleared since, before a backward pass adds to any; ``arrived``: but to this one."""
        undecided = self._handed - self._moved - self._dropped
        if not undecided or capturing():
            return
        others = undecided - {arrived}
        cleared = {name for name in others if self._is_cleared(name, self._parameters[name].grad)}
        if arrived in undecided and others and cleared == others:
            cleared = undecided  # what happens to all others happens to this one
        self._careful = True
        self.clear(cleared)

    def clear(self, names: Iterable[str] | None = None) -> None:
        """The gradients of these, by default of all, are cleared: unless they were applied, they are dropped."""
        cleared = self._handed if names is None else self._handed.intersection(names)
        cleared = cleared - self._moved - self._dropped
        if cleared and not cleared <= self._trained and not self._searched:
            self._searched = True
            for optimizer in living():
                self._know(optimizer)
        # An optimizer evaluates a closure, and uses what comes of it; not what was there before.
        closed = set[str]()
        for optimizer in stepping():
            if optimizer not in self._wrappers:
                closed |= self._held.by(optimizer).keys() - self._earlier.get(id(optimizer), set())
        self._moved |= cleared & closed
        cleared = cleared - closed
        self._dropped |= cleared & self._trained
        unknown = cleared - self._trained
        self._moved |= unknown
        if unknown and not self._said:
            self._say([name for name in unknown if not self._has_changed(name)])

    def settle(self) -> None:
        """Tells the sessions what became of the means so far, before anything else is exchanged."""
        waiting: set[str] = set()
        if self._handed:
            waiting = set() if capturing() else self._handed - self._moved - self._dropped
            for session in self._sessions:
                session.settle(self._dropped, waiting)
        self._handed, self._moved, self._dropped = waiting, set(), set()

    def forget(self) -> None:
        """Counts all that was handed out as applied: parameters come from elsewhere."""
        self._handed, self._moved, self._dropped = set(), set(), set()

    def replayed(self, applied: bool) -> None:
        """A captured step was replayed; ``applied``: what the user says of its means."""
        self._replays += 1
        if applied and self._replays > 1 and self._known and not (self._stepped or self._stepped_in_graph):
            self._replays = -math.inf  # said once
            if self._sessions[0].rank == 0:
                _log.warning(
                    "Grace cannot tell whether the gradients of a replayed step were applied: the optimizer's step is not in "
                    "the graph, and none was made since the replay before. They count as applied, and memories keep what they "
                    "have left. Capture optimizer.step() with the backward pass, or call handle.replayed(applied=False), on "
                    "all ranks, after a replay whose gradients you drop"
                )
        self._stepped = False

    def _is_cleared(self, name: str, gradient: Tensor | None) -> bool:
        if gradient is None:
            return True
        if name in self._versions and self._versions[name][1] == gradient._version:
            return False
        local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
        return local.numel() > 0 and not bool(local.any())

    def _has_changed(self, name: str) -> bool:
        return name in self._versions and self._versions[name][0] != self._parameters[name]._version

    def _say(self, names: Sequence[str]) -> None:
        if not names:
            return
        self._said = True
        for session in self._sessions:
            session.worker.unsure = True
        if self._sessions[0].rank == 0:
            _log.warning(
                "Grace cannot tell whether the gradient of %r was applied before it was cleared: no torch.optim.Optimizer "
                "holds the parameter. It counts as applied, and memories keep what it has left. Exchange no gradient that you "
                "drop: requires_grad_(False) or no_sync() for another network's pass, torch.autograd.grad for an attack",
                min(names),
            )


def _ask(me: weakref.ref[Applied]) -> None:
    if (applied := me()) is not None:
        applied.look()
        applied.settle()


def _tell_replay(me: weakref.ref[Applied], applied: bool) -> None:
    if (watching := me()) is not None:
        watching.replayed(applied)
