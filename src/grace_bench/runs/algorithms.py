"""Algorithms that exchange something else than the gradient of each step: outer loops, which exchange how far replicas have
moved. They stand where a method's text does: ``grace bench train --methods diloco:every=32,topk:ratio=0.01``.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property

import torch
from torch import nn

import grace
from grace.adapters.outer.presets import PRESETS, OuterMethod, OuterSettings, read_outer
from grace_bench.runs.baselines import Counters, NoExchange, counters_of


class Algorithm(ABC):
    """An algorithm, as a run's ``method`` names it.

    Args:
        text: its name with its knobs.

    Attributes:
        family: what tables call its like. period: steps that are alike as a whole only, >= 1: an exchange comes once in them.
    """

    family: str
    period = 1

    def __init__(self, text: str):
        self.text = text

    @abstractmethod
    def connect(self, model: nn.Module, seed: int) -> NoExchange:
        """The model under this algorithm; :meth:`NoExchange.join` brings the optimizer."""


class OuterAlgorithm(Algorithm):
    """An outer loop, by one of its presets."""

    family = "outer loop"

    def __init__(self, text: str):
        super().__init__(text)
        _ = self.settings  # an error now

    @cached_property
    def _read(self) -> tuple[OuterSettings, OuterMethod]:
        return read_outer(self.text)

    @property
    def settings(self) -> OuterSettings:
        """The settings of the loop."""
        return self._read[0]

    @property
    def method(self) -> OuterMethod:
        """What compresses the pseudo-gradients."""
        return self._read[1]

    @property
    def period(self) -> int:  # type: ignore[override]
        return self.settings.every

    def connect(self, model: nn.Module, seed: int) -> NoExchange:
        return OuterRun(model, self.text, seed)


class OuterRun(NoExchange):
    """A replica that an outer loop trains. What is evaluated is theta, which is the same on all ranks."""

    def __init__(self, model: nn.Module, text: str, seed: int):
        super().__init__(model)
        self._text, self._seed = text, seed

    def join(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        self._handle = grace.outer(self.model, optimizer, self._text, seed=self._seed)
        return optimizer

    def count(self) -> Counters:
        return counters_of(self._handle.stats)

    @contextlib.contextmanager
    def shared(self) -> Iterator[nn.Module]:
        with self._handle.shared_model() as model:
            yield model

    def end(self) -> None:
        self._handle.drain()
        self._handle.sync()

    def close(self) -> None:
        self._handle.detach()


ALGORITHMS: dict[str, Callable[[str], Algorithm]] = dict.fromkeys(PRESETS, OuterAlgorithm)


def find_algorithm(text: str) -> Algorithm | None:
    """The algorithm that a run's ``method`` names; None: it names a method or a baseline.

    Raises:
        UnknownNameError, ConfigurationError: an unknown knob, or one out of range.
    """
    make = ALGORITHMS.get(text.strip().partition(":")[0])
    return None if make is None else make(text)
