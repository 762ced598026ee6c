"""Gossip of many workers in one process, without a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from grace.collectives import Traffic
from grace.contract.compressor import Compressor
from grace.contract.peer import Peer
from grace.errors import NonFiniteError
from grace.gossip.settings import GossipSettings, read_gossip, with_graph
from grace.gossip.worker import GossipWorker
from grace.run.simulate import simulate
from grace.transports.traced import Tracer


class GossipSimulator:
    """W workers that gossip, with the code that runs over networks.

    Args:
        settings: a :class:`~grace.gossip.GossipSettings`, or what makes one: ``"choco:graph=ring,method=(topk:ratio=0.1)"``.
        world: W, at least 2.
        seed: of all random streams.
        given: as for :func:`grace.gossip.read_gossip`.

    ``graph``: who hears whom. ``traffic``: of each worker. ``steps``: made so far.

    Raises:
        What :func:`grace.gossip.read_gossip` and :meth:`grace.gossip.Graph.read` raise.

    Example:
        >>> simulator = GossipSimulator("dpsgd:graph=one_peer_exponential", 4)
        >>> for _ in range(2):
        ...     xs = simulator.step({"w": [torch.full((2, 2), float(r)) for r in range(4)]} if not simulator.steps else xs)
        >>> [float(x[0, 0]) for x in xs["w"]]
        [1.5, 1.5, 1.5, 1.5]
    """

    def __init__(self, settings: GossipSettings | str | Compressor | None, world: int, *, seed: int = 0, **given: Any):
        if not isinstance(settings, GossipSettings):
            settings = read_gossip(settings, **given)
        self.settings, self.graph = with_graph(settings, world)
        self.world, self.seed, self.steps = world, seed, 0
        self._workers: list[GossipWorker] = []
        self._tracers = [Tracer(rank, world) for rank in range(world)]

    @property
    def traffic(self) -> list[Traffic]:
        """Rounds and bytes of each worker so far."""
        return [tracer.traffic for tracer in self._tracers]

    @torch.no_grad()
    def step(self, tensors: Mapping[str, Sequence[Tensor]]) -> dict[str, list[Tensor]]:
        """Makes a step of gossip: by name the numbers of all workers, of any shapes -> what each goes on with. In a step of
        ``average_every`` all get the average.

        Raises:
            NonFiniteError: an inf or NaN, with ``nonfinite="error"``; otherwise such tensors come back as they are.
        """
        if not self._workers:
            like = {name: xs[0] for name, xs in tensors.items()}
            self._workers = [GossipWorker(like, self.settings, self.graph) for _ in range(self.world)]
        self.steps += 1
        every = self.settings.average_every
        if every and self.steps % every == 0:
            means = {name: torch.stack(list(xs)).mean(0) for name, xs in tensors.items()}
            for worker in self._workers:
                worker.begin(means)
            return {name: [mean] * self.world for name, mean in means.items()}
        runs = [
            tracer.trace(worker.mix({name: xs[rank] for name, xs in tensors.items()}, self._peers(rank)))
            for rank, (worker, tracer) in enumerate(zip(self._workers, self._tracers, strict=True))
        ]
        outs = simulate(runs)
        spoiled = [name for name, out in outs[0].items() if not out.finite]
        if spoiled and self.settings.nonfinite == "error":
            raise NonFiniteError(f"some worker has an inf or NaN in {', '.join(map(repr, spoiled))}")
        return {name: [out[name].mean for out in outs] for name in tensors}

    def _peers(self, rank: int) -> Any:
        return lambda name: Peer(rank, self.world, self.steps - 1, name, self.seed)
