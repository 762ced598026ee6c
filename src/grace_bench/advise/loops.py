"""Outer loops beside methods: what a step costs where exchanges come once in H of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from grace.adapters.outer.presets import OuterSettings
from grace.auto.settings import wanted
from grace.errors import ConfigurationError
from grace.predict.costs import Carrier, Cost, Step
from grace.predict.replay import Replay
from grace_bench.runs.algorithms import OuterAlgorithm, find_algorithm


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

    def seconds(self, step: Step, network: Carrier, world: int, lanes: int = 1) -> float:
        """Seconds of a step: it waits for what of an exchange the ``delay`` steps beside it do not hide."""
        jobs = self._inner.jobs(step, network, world)
        exchange = sum(undisturbed for job in jobs for _, undisturbed in job)
        loop = self._loop
        waits = loop.fragments * max(0.0, exchange / loop.fragments - loop.delay * step.seconds)
        return step.seconds + waits / loop.every


def cost_of(name: str, make: Callable[[str], Cost]) -> Cost:
    """The cost of a method, or of an outer loop over its method.

    Args:
        name: as a string.
        make: the cost of a method.

    Raises:
        ConfigurationError: an algorithm that is no outer loop, or one whose method chooses for itself.
    """
    algorithm = find_algorithm(name)
    if algorithm is None:
        return make(name)
    method = algorithm.method if isinstance(algorithm, OuterAlgorithm) else None
    if not isinstance(algorithm, OuterAlgorithm) or not isinstance(method, str) or wanted(method) is not None:
        raise ConfigurationError(
            f"advise: a prediction knows methods and outer loops over them, not {name} ({algorithm.family}); legal: "
            "topk:ratio=0.01 or diloco:every=32, for instance. grace bench train measures it"
        )
    return OuterCost(make(method), algorithm.settings)
