"""Optimizers that exchange by themselves: what travels compressed is what their algorithm needs, not the gradient."""

from __future__ import annotations

from grace.optim.onebit_adam import OneBitAdam
from grace.optim.text import optimizers, parse

__all__ = ["OneBitAdam", "optimizers", "parse"]
