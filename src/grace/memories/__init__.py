"""Memories: methods that wrap a method and carry something from step to step.

A memory's successor is made in storage of its own, and takes its place only after the last collective has
answered, and only if every rank's gradient was finite: after a failed exchange or an inf or NaN anywhere the memory is what it
was before.
"""

from __future__ import annotations

from grace.memories.base import Memory
from grace.memories.distef import DistEF
from grace.memories.ef21 import EF21, EF21M
from grace.memories.error_feedback import ErrorFeedback
from grace.memories.momentum import Momentum
from grace.memories.momentum_correction import MomentumCorrection

__all__ = ["EF21", "EF21M", "DistEF", "ErrorFeedback", "Memory", "Momentum", "MomentumCorrection"]
