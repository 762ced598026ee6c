"""Memories that follow the learning rate: what they owe is in units of the gradient, what is applied is not."""

from __future__ import annotations

import math

from grace.errors import ConfigurationError


def lr_ratio(last: float, lr: float | None) -> float:
    """What a memory is multiplied with when the learning rate goes from ``last`` (0: none yet) to ``lr``.

    Raises:
        ConfigurationError: nobody said what the learning rate is, or it is negative, infinite or NaN.
    """
    if lr is None:
        raise ConfigurationError(
            "a memory follows the learning rate, but nobody says what it is; use attach(..., optimizer=optimizer), or "
            "set handle.lr before each step"
        )
    if not 0 <= lr < math.inf:
        raise ConfigurationError(f"lr={lr!r} is not a learning rate; legal: 0 <= lr < inf")
    return last / lr if last and lr else 1.0
