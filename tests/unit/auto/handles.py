"""Handles under ``auto`` between threads, with clocks and links that are only modelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from grace.adapters.choosing import Choosing
from grace.auto.calibrate import Calibration
from grace.auto.settings import Auto
from grace.collectives import NARROW
from grace.predict.links import UNSHAPED
from grace.predict.probe import Timing, Timings
from grace.predict.rates import Rate
from grace.registry import spell
from grace.run.options import Options
from grace.run.session import Session
from grace.run.steps import Steps
from tests.unit.networks import in_threads

LIKE = {"first": torch.empty(64, 64), "bias": torch.empty(64), "second": torch.empty(64, 64)}
BUCKETS = (("second",), ("bias", "first"))
MS = 1_000_000
KINDS = {"none": "AllReduce", "bf16": f"AllReduce{NARROW}", "topk": "AllGather", "qsgd:bits=4": "AllToAll"}
NUMBERS = 4096 + 64
Seconds = Callable[[str, int], float]  # of an exchange of a bucket: method, step


def calibration(each: dict[str, float], cpu: float = 0.0) -> Calibration:
    """Exchanges of a bucket take so many milliseconds, by method."""
    kinds, rates = {}, {}
    for name, ms in each.items():
        kind = KINDS[name]
        kinds[kind] = Timing([4, 4096], [1e-6, ms / 1e3])
        rates[name] = Rate(2, ((0.0, cpu / NUMBERS), (0.0, cpu / NUMBERS)), ((kind, 0.0, 1.0),))
    return Calibration(2, "threads", 2.0, Timings(UNSHAPED, 2, 4, kinds), rates, {}, (), (), {"codecs": MS, "link": MS})


class Handle(Choosing):
    """A rank's training, with a clock of its own."""

    buckets = BUCKETS

    def __init__(self, transport: Any, auto: Auto | str | None, method: Any = "none", compute: int = 100):
        super().__init__(Steps(Session(LIKE, method, transport, Options())))
        self.now, self.compute, self.step = 0, compute, 0
        self._clock = self._time
        self.used: list[str] = []
        self._begin_auto(Auto.read(auto) if isinstance(auto, str) else auto)

    def _time(self) -> int:
        return self.now

    def detach(self) -> None: ...

    def train(self, steps: int, seconds: Seconds) -> None:
        draw = torch.Generator().manual_seed(self.rank)
        for _ in range(steps):
            waits = 0
            for k, names in enumerate(self.buckets):
                self.now += self.compute * MS // len(self.buckets)
                gradients = {name: torch.randn(LIKE[name].shape, generator=draw) for name in names}
                self._comes(gradients)
                method = self.method_of("second")
                waits += int(1e3 * MS * seconds(method, self.step))
                if k == len(self.buckets) - 1:
                    self.now += waits
                    self.used.append(method)
                self._exchange_bucket(gradients, k == len(self.buckets) - 1)
            self.step += 1

    def method_of(self, name: str) -> str:
        return spell(self._session.policy.method_for(name, LIKE[name], self.step))


def real(each: dict[str, float]) -> Seconds:
    return lambda method, step: each[method] / 1e3


AUTO = "auto:methods=(topk;qsgd:bits=4)"


def both(job: Callable[[Any, int], Any]) -> list[Any]:
    results = in_threads(2, job)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
