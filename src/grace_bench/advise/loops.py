"""Algorithms beside methods: the cost of a step where exchanges come once in H of them, of momenta or of parameters. They all
come after the backward pass.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from grace import optim
from grace.adapters.outer.presets import OuterSettings
from grace.auto.settings import wanted
from grace.collectives import Exchange
from grace.contract.peer import Peer
from grace.contract.workspace import Workspace
from grace.errors import ConfigurationError
from grace.gossip.settings import read_gossip, with_graph
from grace.gossip.worker import GossipWorker
from grace.predict.costs import MOST_WORKERS, Carrier, Cost, Step
from grace.predict.replay import Replay, Replayer
from grace.registry.policy import Policy
from grace_bench.runs.algorithms import (
    GossipAlgorithm,
    OptimizerAlgorithm,
    OuterAlgorithm,
    TorchLocalAlgorithm,
    find_algorithm,
)


class OuterCost(Cost):
    """An outer loop's steps: the mean over a window.

    Args:
        inner: what the loop's method costs, where it exchanges the whole model.
        settings: of the loop.
    """

    def __init__(self, inner: Cost, settings: OuterSettings):
        super().__init__(inner.at)
        self._inner, self._loop = inner, settings

    def _at(self, world: int) -> Replay:
        whole, every = self._inner.at(world), self._loop.every
        codec = tuple(adds / every for adds in whole.codec)
        return dataclasses.replace(whole, codec=codec, sent=whole.sent / every)

    def seconds(self, step: Step, network: Carrier, world: int) -> float:
        """Seconds of a step: it waits for what of an exchange the ``delay`` steps beside it do not hide."""
        jobs = self._inner.jobs(step, network, world)
        exchange = sum(undisturbed for job in jobs for _, undisturbed in job)
        loop = self._loop
        waits = loop.fragments * max(0.0, exchange / loop.fragments - loop.delay * step.seconds)
        return step.seconds + waits / loop.every


class GossipCost(OuterCost):
    """A step of gossip: with ``overlap`` its messages travel beside the next step."""

    def __init__(self, inner: Cost, overlap: bool):
        super().__init__(inner, OuterSettings(every=1))
        self._overlap = overlap

    def seconds(self, step: Step, network: Carrier, world: int) -> float:
        """Seconds of a step."""
        whole = super().seconds(step, network, world)
        return max(step.seconds, whole - step.seconds) if self._overlap else whole


class GossipSpeaker:
    """A worker of gossip, as a replay sees it.

    Args:
        text: of the algorithm. like: a tensor for each name. world: workers.
    """

    def __init__(self, text: str, like: Mapping[str, Tensor], world: int):
        settings, graph = with_graph(read_gossip(text), world)
        self.world, self.workspace, self._step = world, Workspace(), 0
        self._worker = GossipWorker(like, settings, graph)
        self._worker.begin({name: torch.zeros_like(x) for name, x in like.items()})

    def exchange(self, tensors: Mapping[str, Tensor]) -> Exchange[Mapping[str, Any]]:
        """Mixes tensors, by name."""
        return (yield from self._worker.mix(tensors, lambda name: Peer(0, self.world, self._step, name, 0)))

    def advance(self) -> None:
        """The step has ended."""
        self._step += 1


def cost_of(name: str, make: Callable[[Policy | str], Cost], replayer: Replayer) -> Cost:
    """The cost of a method, or of an algorithm.

    Args:
        name: as a string.
        make: the cost of a method.
        replayer: of the model.

    Raises:
        ConfigurationError: an algorithm whose method chooses for itself.
    """
    algorithm = find_algorithm(name)
    if algorithm is None:
        return make(name)
    if isinstance(algorithm, OuterAlgorithm):
        method = algorithm.method
        if not isinstance(method, str) or wanted(method) is not None:
            raise ConfigurationError(
                f"advise: a prediction knows outer loops over methods, not over one that is chosen while they run: {name}; "
                "legal: diloco:every=32, for instance. grace bench train measures it"
            )
        return OuterCost(make(method), algorithm.settings)
    if isinstance(algorithm, TorchLocalAlgorithm):
        return OuterCost(make("none"), algorithm.settings)
    if isinstance(algorithm, OptimizerAlgorithm):
        policy, every = _of_optimizer(name)
        return OuterCost(make(policy), OuterSettings(every=every))
    assert isinstance(algorithm, GossipAlgorithm)
    like = {key: torch.empty(shape, dtype=torch.float32, device="cpu") for key, shape in replayer.shapes.items()}
    # Neighbours do not grow with the workers as other exchanges do: each number of workers is replayed.
    inner = Cost(lambda world: replayer.run_worker(GossipSpeaker(name, like, world)), (MOST_WORKERS,))
    return GossipCost(inner, read_gossip(name).overlap)


def _of_optimizer(text: str) -> tuple[Policy, int]:
    """The policy of an optimizer once its start at full size is over, and its steps from one exchange to the next once its
    windows have grown.
    """
    make, given = optim.parse(text), {}
    if "freeze_step" in inspect.signature(make.func).parameters:
        given["freeze_step"] = 1
    weight = nn.Parameter(torch.zeros(64, 64, dtype=torch.float32, device="cpu"))
    optimizer = make([("weight", weight)], transport="alone", **given)
    try:
        return optimizer.session.policy, getattr(optimizer, "max_interval", 1)
    finally:
        optimizer.close()
