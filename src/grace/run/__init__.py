"""The same generators, several ways: over a network, in lock step in one process, counted, checked, fused."""

from __future__ import annotations

from grace.run.checked import Checked
from grace.run.drive import Transport, drive
from grace.run.simulate import simulate
from grace.run.simulator import Simulator
from grace.run.together import Layouts, together
from grace.run.traced import Tracer
from grace.run.worker import Worker

__all__ = ["Checked", "Layouts", "Simulator", "Tracer", "Transport", "Worker", "drive", "simulate", "together"]
