"""What the optimizer must be like for a method: some methods cannot use the task's own learning rate or momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from grace.compressor import Compressor
from grace.method import Method
from grace.wrapping import layers


@dataclass(frozen=True, slots=True)
class Adjustment:
    """A departure from the task's optimizer, and its reason. ``momentum=None`` leaves the momentum as it is."""

    why: str
    lr_scale: float = 1.0
    momentum: float | None = None

    def __str__(self) -> str:
        parts = [] if self.lr_scale == 1 else [f"lr x {self.lr_scale:g}"]
        parts += [] if self.momentum is None else [f"momentum {self.momentum:g}"]
        return f"{', '.join(parts)}: {self.why}"


# An SGD step of +-1 for each element is 50 to 100 times a gradient's on the tasks here; momentum would add votes up.
MAJORITY = Adjustment("the update is the sign of a vote, +-1 for each element, whatever the gradient's size", 0.02, 0.0)


def adjustment_for(method: Method[Any]) -> Adjustment | None:
    """What this method needs of the optimizer; None, as for most: nothing."""
    layer = layers(method)[-1]
    return MAJORITY if isinstance(layer, Compressor) and layer.aggregation == "majority" else None


def set_momentum(optimizer: torch.optim.Optimizer, momentum: float) -> bool:
    """Sets the momentum of an SGD-like optimizer; says whether there was one to set."""
    groups = [group for group in optimizer.param_groups if "momentum" in group]
    for group in groups:
        group["momentum"] = momentum
        if momentum == 0 and "nesterov" in group:
            group["nesterov"] = False  # torch refuses it without momentum
    return bool(groups)
