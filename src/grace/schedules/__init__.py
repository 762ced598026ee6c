"""Knobs that follow the step or the epoch, and methods that start later.

In strings: ``topk:ratio=warmup(0.25->0.001, 4 epochs)``, ``qsgd:levels=steps(0:127, 1000:7)``, ``topk:start=1000``.
"""

from __future__ import annotations

from grace.schedules.delayed import Delayed
from grace.schedules.schedule import Schedule
from grace.schedules.scheduled import MethodTemplate, Scheduled

__all__ = ["Delayed", "MethodTemplate", "Schedule", "Scheduled"]
