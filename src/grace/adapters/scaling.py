"""Loss scaling: settings that ranks must have in common, and the scale of a step."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from grace.errors import ConfigurationError
from grace.flags.capturing import refuse_capture
from grace.flags.finite import on_host


def describe_scaler(scaler: torch.amp.GradScaler, parameters: Mapping[str, Tensor]) -> tuple[bool, float, float, int]:
    """True if it is on, and how its scale grows and falls. Since all ranks see the same inf and NaN, their scales then agree.

    Of the parameters only the dtypes matter, not the shapes.

    Raises:
        ConfigurationError: parameters in float16.
    """
    for name, p in parameters.items():
        if p.dtype == torch.float16:
            raise ConfigurationError(
                f"scaler: {name!r} is float16, whose gradients a GradScaler refuses; keep parameters in float32 and compute "
                "under torch.autocast"
            )
    rules = (scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval())
    return (scaler.is_enabled(), *rules)


def scale_of(scaler: torch.amp.GradScaler, device: torch.device) -> float | Tensor:
    """The scale of this step, for gradients on this device: a 0-d float32 tensor if it is there, so that nobody waits for it.

    Raises:
        ConfigurationError: work is captured.
    """
    refuse_capture("a GradScaler decides on the host whether the optimizer steps")
    scale = getattr(scaler, "_scale", None)  # torch's own optimizers take it from there, too
    if isinstance(scale, Tensor) and scale.device == device and not on_host(device) and scaler.is_enabled():
        return scale
    return scaler.get_scale()
