"""Memories: methods that wrap a method and carry something from step to step.

A memory's successor is made in storage of its own. It takes the memory's place only after the last collective has answered,
and only if every rank's gradient was finite: a failed exchange, or an inf or NaN anywhere, leaves the memory as it was.
"""

from __future__ import annotations

from grace.contract.method import Method
from grace.registry.discovery import import_classes

_found = import_classes(__name__, __path__, Method)
globals().update(_found)
__all__ = sorted(_found)
