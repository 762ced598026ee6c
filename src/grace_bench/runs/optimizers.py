"""Adjustment of a task's optimizer to a method: some cannot use the task's own learning rate or momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from grace.contract.method import Method
from grace.run.optimizer import read_settings


@dataclass(frozen=True, slots=True)
class Adjustment:
    """A departure from a task's optimizer, and its reason. ``momentum=None`` leaves the momentum as it is."""

    why: str
    lr_scale: float = 1.0
    momentum: float | None = None

    def __str__(self) -> str:
        parts = [] if self.lr_scale == 1 else [f"lr x {self.lr_scale:g}"]
        parts += [] if self.momentum is None else [f"momentum {self.momentum:g}"]
        return f"{', '.join(parts)}: {self.why}"


def adjust(optimizer: torch.optim.Optimizer, method: Method[Any]) -> Adjustment | None:
    """Gives the optimizer the momentum that this method needs; returns what changes, including the factor on its learning
    rate. None, as for most methods: nothing changes. See :class:`grace.contract.needs.Needs`.
    """
    needs, has = method.needs, read_settings(optimizer)
    momentum = 0.0 if not needs.momentum and has.momentum and set_momentum(optimizer, 0.0) else None
    lr_scale = 1.0 if has.lr is None else needs.lr_scale
    return None if lr_scale == 1 and momentum is None else Adjustment(needs.why, lr_scale, momentum)


def set_momentum(optimizer: torch.optim.Optimizer, momentum: float) -> bool:
    """Sets the momentum of an SGD-like optimizer; returns whether there was one to set."""
    groups = [group for group in optimizer.param_groups if "momentum" in group]
    for group in groups:
        group["momentum"] = momentum
        if momentum == 0 and "nesterov" in group:
            group["nesterov"] = False  # torch refuses it without momentum
    return bool(groups)
