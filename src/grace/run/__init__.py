"""The same generators, run in several ways: over a network, in lock step in one process, counted, checked, fused."""

from __future__ import annotations

from grace.contract.together import Layouts, together
from grace.run.drive import drive
from grace.run.simulate import simulate
from grace.run.simulator import Simulator
from grace.run.worker import Worker
from grace.transports.base import Transport
from grace.transports.checked import Checked
from grace.transports.traced import Tracer

__all__ = ["Checked", "Layouts", "Simulator", "Tracer", "Transport", "Worker", "drive", "simulate", "together"]
