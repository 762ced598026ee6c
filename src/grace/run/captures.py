"""Steps that are captured into a graph: states that stay where they are, and flags that the host reads after each replay.

A graph repeats the same operations on the same memory. So what a step has made of a state is copied back into the state (after
the state itself was copied, where a replay may be undone), what the step has used is kept for good, and what a graph cannot
repeat is refused, such as sizes that the data decide. Random numbers depend on the step, which a captured step reads from the
device: :class:`grace.flags.capturing.CapturedStep`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from grace.contract.method import Exchanged, Method
from grace.contract.peer import Peer
from grace.errors import ConfigurationError, GraceError
from grace.flags.capturing import CAPTURABLE, CapturedStep, step_word
from grace.flags.pending import PendingFlags
from grace.flags.refusals import Refusals
from grace.registry import spell
from grace.registry.policy import Policy
from grace.run.unapplied import tensors_of


def check_capture(name: str, method: Method[Any], x: Tensor, peer: Peer, busy: bool) -> None:
    """Refuses to capture what a graph cannot repeat.

    Args:
        name: of the tensor.
        method: that exchanges it.
        x: the tensor, of any shape.
        peer: this worker.
        busy: whether something besides happens to the tensor in this step.

    Raises:
        ConfigurationError: names the tensor and the method, and what can be captured.
    """
    if method.traffic(x.to("meta"), peer) is None:
        raise ConfigurationError(
            f"{name!r}: how many bytes {spell(method)} sends depends on the data, and a captured graph sends as many each "
            f"time; {CAPTURABLE}"
        )
    if busy:
        raise ConfigurationError(
            f"{name!r} is owed something by an earlier method, is measured or is held back in this step, which a graph would "
            "repeat for ever: make one step more before the capture"
        )


def check_rules(policy: Policy, step: int) -> None:
    """Refuses to capture a step while rules of the policy are still to begin or to end: replays would go on by those of now.

    Raises:
        ConfigurationError: names the rule.
    """
    for rule in policy.rules:
        if not rule.settled(step):
            raise ConfigurationError(
                f"the rule {rule} begins or ends after step {step}, which a captured graph cannot: capture a step from which "
                "on the same rules hold, or give the policy no from_step and until_step"
            )


class Captures:
    """Graphs and flags of captured steps. device: the accelerator that steps run on; None until there was one."""

    def __init__(self) -> None:
        self._kept: list[Any] = []  # a graph uses it as long as it lives
        self._before: dict[int, tuple[Tensor, Tensor]] = {}  # a state, by its identity, and what it was before a replay
        self._flags: list[tuple[int, str, Tensor]] | None = None
        self._states: dict[str, Any] = {}  # by tensor, the state that the graph changes
        self._ended = False
        self._refusals = Refusals()
        self.device: torch.device | None = None
        self._clock: Tensor | None = None

    def tell_step(self, step: int) -> None:
        """The next step is this one: it is written where a captured step finds it, on the device."""
        if self.device is None:
            return
        if self._clock is None:
            self._clock = torch.empty(1, dtype=torch.int32, device=self.device)
        self._clock.fill_(step_word(step, self.device))

    def step(self, step: int) -> CapturedStep:
        """The step, as it is captured: with a clock.

        Raises:
            ConfigurationError: no step was made before the capture.
        """
        if self._clock is None:
            raise ConfigurationError(
                "a captured step reads its number from the device, where a step before it has put it: make a step before the "
                "capture"
            )
        return CapturedStep.at(step, self._clock)

    def keep_old_state(self, name: str, old: Any, out: Exchanged[Any], undoes: bool) -> Exchanged[Any]:
        """The result with the old state, into which the new one was copied.

        Args:
            name: of the tensor.
            old: the state before the step.
            out: what the step has made.
            undoes: whether :meth:`undo` may be asked for, which takes a copy of the old state.

        Raises:
            ConfigurationError: the state has another form after the step, or a number of the host's has changed.
        """
        new = out.state
        self._kept.append((old, new))
        if self._ended:  # another capture begins
            self._states, self._ended = {}, False
        self._states[name] = old
        for a, b in _pairs(old, new):
            if isinstance(a, Tensor):
                if undoes:  # one copy for all captures
                    self._before.setdefault(id(a), (a, torch.empty_like(a)))[1].copy_(a)
                a.copy_(b)
            elif a != b:
                raise ConfigurationError(
                    f"the state of a tensor changes from {a!r} to {b!r} on the host, which a graph cannot repeat; {CAPTURABLE}"
                )
        return Exchanged(out.mean, out.rest, old, out.finite)

    def end(self, pending: PendingFlags, *used: Any) -> None:
        """The capture of a step has ended. Its flags and what it has used stay."""
        self._flags, self._refusals = pending.flags, pending.refusals
        pending.flags, pending.refusals = [], Refusals()
        self._kept.append(used)
        self._ended = True

    def replay(self, pending: PendingFlags, step: int, states: Mapping[str, Any]) -> None:
        """A replay leaves its flags where those of the capture were. ``states``: the worker's, by tensor.

        Raises:
            GraceError: no step was captured, or the graph changes states that are the worker's no more.
        """
        if self._flags is None:
            raise GraceError("replayed() without a captured step; legal: after graph.replay()")
        for name, held in self._states.items():
            now = tensors_of(states.get(name))
            if not all(a is b for a, b in zip_longest(tensors_of(held), now)):
                raise GraceError(
                    f"{name!r}: since the capture a step was made without the graph, a state was loaded or the method "
                    "changed, so that the graph goes on with an old memory, and this replay used it: capture again after such "
                    "a step, and replay no earlier graph"
                )
        pending.flags = [(step, name, flag) for _, name, flag in self._flags]
        pending.refusals = self._refusals

    def undo(self) -> None:
        """The states are what they were before the last replay."""
        for state, before in self._before.values():
            state.copy_(before)


def _pairs(old: Any, new: Any) -> Iterator[tuple[Any, Any]]:
    """The parts of two states, side by side."""
    if isinstance(old, tuple) and isinstance(new, tuple) and len(old) == len(new):
        for a, b in zip(old, new, strict=True):
            yield from _pairs(a, b)
    elif isinstance(old, Tensor) != isinstance(new, Tensor) or (isinstance(old, Tensor) and old.shape != new.shape):
        yield type(old).__name__, type(new).__name__ + " of another form"
    else:
        yield old, new
