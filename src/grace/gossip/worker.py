"""The part of a worker in gossip, over any network: conversations about the tensors of a model, and their states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from grace.collectives import AllReduce, Exchange
from grace.contract.peer import Peer
from grace.contract.together import Layouts, together
from grace.gossip.algorithms import Choco, ChocoState, Mixed
from grace.gossip.graph import Graph
from grace.gossip.settings import GossipSettings


class GossipWorker:
    """The conversations of one worker about tensors, float32 or float64, and what it remembers of them.

    Args:
        like: a tensor for each name.
        settings: of gossip. graph: of its workers.

    ``states``: by name.
    """

    def __init__(self, like: Mapping[str, Tensor], settings: GossipSettings, graph: Graph):
        self.graph = graph
        self.talks = {name: settings.conversation(x, graph) for name, x in like.items()}
        self.states: dict[str, Any] = {name: talk.init(like[name]) for name, talk in self.talks.items()}
        self._layouts = Layouts()

    def begin(self, shared: Mapping[str, Tensor]) -> None:
        """All workers begin with these numbers, of any shapes, by name, or begin anew after an exact average, and know that of
        each other.
        """
        for name, x in shared.items():
            if isinstance(self.talks[name], Choco):
                h = x.detach().float()
                self.states[name] = ChocoState(h.clone(), h.clone())

    def mix(self, xs: Mapping[str, Tensor], peer: Callable[[str], Peer]) -> Exchange[dict[str, Mixed]]:
        """Makes a step: this worker's numbers, of any shapes, by name, which are only read -> what it goes on with. All
        workers have the same names in the same order. If it fails, the states stay as they were.

        Args:
            xs: by name; all or some of the tensors.
            peer: who this worker is, for the tensor of a name.
        """
        runs = [self.talks[name].exchange(x, self.states[name], peer(name)) for name, x in xs.items()]
        outs: Sequence[Any] = yield from together(runs, self._layouts)
        mixed = dict(zip(xs, outs, strict=True))
        self.states.update({name: out.state for name, out in mixed.items()})
        return mixed


def consensus(xs: Sequence[Tensor], means: Sequence[Tensor]) -> Exchange[float]:
    """The distance of the workers to their average: ``sqrt(mean over workers of |x - mean|^2) / |mean|`` over all tensors, of
    any shapes. One round of 8 bytes.
    """
    squares = [(x.detach().double() - m.double()).square().sum() for x, m in zip(xs, means, strict=True)]
    apart = yield AllReduce(torch.stack(squares).sum().view(1), "mean")
    norm = torch.stack([m.detach().double().square().sum() for m in means]).sum().sqrt()
    return float(apart[0].sqrt() / norm) if float(norm) > 0 else float(apart[0].sqrt())
