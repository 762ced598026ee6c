"""Conversion of a worker's state when the workers change: one is lost, one joins, or a step takes place without some.

A worker owes the model ``e / W``: its memory, divided by the number of workers among which it last exchanged. So a worker that
goes on among W' scales its memory by ``W' / W``, and one that stays away keeps what it has, in units of its own. The sum of
all these is the debt; it changes by what steps compute and apply, and by what a lost worker takes along.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grace.registry import spell
from grace.registry.policy import Policy
from grace.run.saved import WorkerState, restore_shared

Shared = Mapping[str, tuple[str, list[Any]]]


def carry(state: WorkerState, factor: float) -> WorkerState:
    """The state among ``factor`` times as many workers: W' / W, > 0.

    Debts are scaled, the worker's own parts stay. A method whose state holds what belongs to the old workers together (kinds
    "chunk" and "together") starts afresh; what it owed is added to the next gradient. Tensors are new where they change.
    """
    states, owed = {}, dict(state.owed)
    for name, (method, held) in state.states.items():
        kinds, debt = method.kinds(held), method.owed(held)
        roles = set(_leaves(kinds))
        if roles & {"chunk", "together"} or (debt is not None and "debt" not in roles):
            if debt is not None:
                owed[name] = owed[name] + debt if name in owed else debt.clone()
        else:
            states[name] = (method, held if factor == 1 else _scale(held, kinds, factor))
    return replace(state, states=states, owed=owed if factor == 1 else {name: x * factor for name, x in owed.items()})


def catch_up(
    state: WorkerState, step: int, seed: int, shared: Shared, policy: Policy, like: Mapping[str, Tensor]
) -> WorkerState:
    """The state of a worker that was away, or is new, at ``step``: with what is ``shared`` among those who were not (see
    :meth:`grace.run.saved.WorkerState.shared_parts`), and with its own debts. ``like`` has a tensor for every name.

    Raises:
        StateError: what is shared does not fit.
    """
    begun = WorkerState.begin(step, seed, shared, policy, like)
    states, owed = dict(state.states), dict(state.owed)
    for name, fresh in begun.states.items():
        method, held = states.get(name, (None, None))
        if method is None:
            states[name] = fresh
        elif spell(method) == shared[name][0] and (full := _fill(held, method.kinds(held), shared[name][1], name)):
            states[name] = (method, full[0])
        else:  # under another method, or it has not begun
            debt = method.owed(held)
            if debt is not None:
                owed[name] = owed[name] + debt if name in owed else debt.clone()
            states[name] = fresh
    return replace(state, step=step, seed=seed, states=states, owed=owed)


def _fill(held: Any, kinds: Any, parts: list[Any], name: str) -> tuple[Any] | None:
    """The state with these shared parts, if it has as many."""
    if sum(kind == "shared" for kind in _leaves(kinds)) != len(parts):
        return None
    return (restore_shared(held, kinds, list(parts), name),)


def _leaves(kinds: Any) -> Iterator[str]:
    if isinstance(kinds, tuple):
        for part in kinds:
            yield from _leaves(part)
    else:
        yield kinds


def _scale(held: Any, kinds: Any, factor: float) -> Any:
    if isinstance(held, Tensor):
        if isinstance(kinds, tuple):  # a kind for each row
            return torch.stack([_scale(row, kind, factor) for row, kind in zip(held, kinds, strict=True)])
        return held * factor if kinds == "debt" else held
    if isinstance(held, tuple):
        parts = [_scale(part, kind, factor) for part, kind in zip(held, kinds, strict=True)]
        return type(held)(*parts) if hasattr(held, "_fields") else tuple(parts)
    return held
