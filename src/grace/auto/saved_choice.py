"""The part of a state that describes the chosen methods, and its use where it is loaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from grace.auto.choices import Buckets
from grace.auto.planner import Part
from grace.errors import StateError
from grace.registry import spell
from grace.registry.policy import Policy


def read_methods(saved: Any) -> dict[str, str]:
    """The method of each tensor, from what :meth:`grace.auto.driver.Driver.state_dict` gave.

    Raises:
        StateError: it is not that.
    """
    methods = saved.get("methods") if isinstance(saved, Mapping) else None
    if not isinstance(methods, Mapping) or not all(isinstance(text, str) for pair in methods.items() for text in pair):
        raise StateError(f"not a Grace state: its auto should say the method of each tensor, got {saved!r}")
    return dict(methods)


def parts_of(
    policy: Policy,
    buckets: Buckets,
    methods: Sequence[str],
    like: Mapping[str, Tensor],
    tell: Callable[[Sequence[int]], Sequence[Sequence[int]]],
) -> list[Part] | None:
    """Each bucket with the method that its largest tensor has under a policy, as a rank knows that has a part of it; None: one
    is not among ``methods``. All ranks call it.

    Args:
        policy: of the state.
        buckets: of the model.
        methods: that may be used, in the same order on all ranks.
        like: this rank's tensors, of any shape, by name.
        tell: tells all ranks whole numbers, and gives everyone's.
    """
    numbers = []
    for names in buckets.names:
        free = [name for name in names if buckets.fixed(name) is None] or list(names)
        name = max(free, key=lambda name: math.prod(buckets.shapes[name]))
        text = spell(policy.method_for(name, like[name], 0)) if name in like else ""
        numbers.append(methods.index(text) if text in methods else -1)
    chosen = [max(column) for column in zip(*tell(numbers), strict=True)]
    return None if min(chosen) < 0 else [Part(j, j + 1, methods[k]) for j, k in enumerate(chosen)]
