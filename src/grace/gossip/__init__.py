"""Gossip: every worker trains a replica of its own, and mixes its parameters with those of its neighbours in a graph.

The package can be called: ``grace.gossip(model, optimizer, "topk:ratio=0.1", graph="ring")``; see
:func:`grace.gossip.door.gossip`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from grace.gossip.algorithms import DPSGD, Choco, DeepSqueeze
from grace.gossip.door import gossip
from grace.gossip.graph import GRAPHS, Graph
from grace.gossip.handle import GossipHandle
from grace.gossip.settings import ALGORITHMS, GossipSettings, is_gossip, read_gossip
from grace.gossip.simulator import GossipSimulator

__all__ = [
    "ALGORITHMS",
    "DPSGD",
    "GRAPHS",
    "Choco",
    "DeepSqueeze",
    "GossipHandle",
    "GossipSettings",
    "GossipSimulator",
    "Graph",
    "is_gossip",
    "read_gossip",
]


class _CallablePackage(ModuleType):
    """A package and a function under one name: ``import grace.gossip`` and ``grace.gossip(...)`` both work."""

    def __call__(self, *args: Any, **kwargs: Any) -> GossipHandle:
        return gossip(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
