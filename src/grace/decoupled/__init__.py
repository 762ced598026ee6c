"""Learners that wait for nobody: Decoupled DiLoCo (Douillard et al., arXiv 2604.21428, 2026), compressed both ways.

Each learner trains on its own clock; a syncer merges what they send, fragment by fragment, as soon as enough have reported.
The protocol is two state machines, :class:`~grace.decoupled.learner.Learner` and :class:`~grace.decoupled.syncer.Syncer`,
without network or clock; gRPC carries their messages between processes, and ``grace simulate --decoupled`` in virtual time.

The package can be called: ``grace.decoupled(model, optimizer, "host:4711", name="a", every=100)`` makes a process a learner.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from grace.decoupled.checkpoint import read_parameters
from grace.decoupled.handle import DecoupledHandle, decoupled
from grace.decoupled.learner import LearnerStats

if TYPE_CHECKING:
    from grace.decoupled.server import serve

__all__ = ["DecoupledHandle", "LearnerStats", "decoupled", "read_parameters", "serve"]


class _CallablePackage(ModuleType):
    """A package and a function under one name: ``grace.decoupled.serve(...)`` and ``grace.decoupled(...)`` both work."""

    def __call__(self, *args: Any, **more: Any) -> DecoupledHandle:
        return decoupled(*args, **more)


sys.modules[__name__].__class__ = _CallablePackage


def __getattr__(name: str) -> Any:
    """Finds what needs gRPC where it is asked for: ``import grace`` does without."""
    if name == "serve":
        from grace.decoupled.server import serve

        return serve
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
