"""Settings that ranks must have in common for loss scaling."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from grace.errors import ConfigurationError


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
