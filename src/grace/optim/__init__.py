"""Optimizers that exchange by themselves: what travels compressed is what their algorithm needs, not the gradient."""

from __future__ import annotations

from grace.optim.demo import DeMo
from grace.optim.dion import Dion
from grace.optim.onebit_adam import OneBitAdam
from grace.optim.onebit_lamb import OneBitLamb
from grace.optim.text import optimizers, parse
from grace.optim.zero_one_adam import ZeroOneAdam

__all__ = ["DeMo", "Dion", "OneBitAdam", "OneBitLamb", "ZeroOneAdam", "optimizers", "parse"]
