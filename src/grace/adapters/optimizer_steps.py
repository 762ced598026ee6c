"""Steps of optimizers: the one place that doors ask.

Torch calls global hooks around the ``step()`` of every ``torch.optim.Optimizer``, also of one that a door was not given. A
``GradScaler`` that skips a step does not call ``step()``.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


class Listener(Protocol):
    """Hears of steps as long as it lives. One that has ``will_step(optimizer)`` hears of them before, too."""

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Takes note that this optimizer has stepped: those of its parameters that had a gradient have moved."""


_listeners: weakref.WeakSet[Listener] = weakref.WeakSet()
_under_way: list[weakref.ref[torch.optim.Optimizer]] = []  # outermost first
_hooked = False


def listen(listener: Listener) -> None:
    """From now on ``listener.stepped(optimizer)`` is called after each step of any optimizer of this process."""
    global _hooked
    if not _hooked:
        register_optimizer_step_pre_hook(_before)
        register_optimizer_step_post_hook(_after)
        _hooked = True
    _listeners.add(listener)


def stepping() -> Iterator[torch.optim.Optimizer]:
    """The optimizers whose ``step()`` is under way, outermost first: one that evaluates a closure, or wraps another."""
    for reference in _under_way:
        if (optimizer := reference()) is not None:
            yield optimizer


def living() -> Iterator[torch.optim.Optimizer]:
    """All optimizers that there are. torch keeps no list of them; objects refer to their class. It takes long."""
    classes = [torch.optim.Optimizer]
    for kind in classes:
        classes += kind.__subclasses__()
    for thing in gc.get_referrers(*classes):
        if issubclass(type(thing), torch.optim.Optimizer) and hasattr(thing, "param_groups"):
            yield thing


class HeldParameters:
    """Parameters, of those that it is given, that an optimizer holds.

    Args:
        names: the parameters, of any shapes, each with its name.
    """

    def __init__(self, names: Mapping[Tensor, str]):
        self._names = names
        self._by: weakref.WeakKeyDictionary[torch.optim.Optimizer, tuple[list[int], dict[str, Tensor]]] = (
            weakref.WeakKeyDictionary()
        )

    def by(self, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        """Parameters that this optimizer holds, by name."""
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        known = self._by.get(optimizer)
        if known is None or known[0] != sizes:
            known = self._by[optimizer] = (sizes, dict(self._find(optimizer)))
        return known[1]

    def _find(self, optimizer: torch.optim.Optimizer) -> Iterable[tuple[str, Tensor]]:
        for group in optimizer.param_groups:
            for p in group["params"]:
                if (name := self._names.get(p)) is not None:
                    yield name, p


def _before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    _drop(optimizer)  # a step that has raised has not ended
    _under_way.append(weakref.ref(optimizer))
    for listener in tuple(_listeners):
        if (will_step := getattr(listener, "will_step", None)) is not None:
            will_step(optimizer)


def _after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    _drop(optimizer)
    for listener in tuple(_listeners):
        listener.stepped(optimizer)


def _drop(optimizer: torch.optim.Optimizer) -> None:
    for place, reference in enumerate(_under_way):
        if reference() is optimizer:
            del _under_way[place:]
            return
