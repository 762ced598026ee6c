"""The compression error of each method for each tensor's gradient: measured in one step; the largest of all ranks counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from grace.contract.peer import Peer
from grace.predict.ways import TO_ALL, Way
from grace.registry import method as make_method

_MILLION, _MOST = 1_000_000, 1e3


class Losses:
    """Shares that are lost, by method and tensor: ``of``."""

    def __init__(self) -> None:
        self.of: dict[str, dict[str, float]] = {}

    def measure(
        self,
        gradients: Mapping[str, Tensor],
        methods: Sequence[str],
        peer: Callable[[str], Peer],
        way: Way = TO_ALL,
    ) -> None:
        """Measures the error of each method for these gradients, each of any shape, where they go this way. ``peer``: who
        this worker is in the exchange of a tensor of this name.
        """
        for name, x in gradients.items():
            for text in methods:
                lost = way.lost(make_method(text), x, peer(name))
                self.of.setdefault(text, {})[name] = float("inf") if lost is None else lost

    def share(
        self, names: Sequence[str], methods: Sequence[str], tell: Callable[[Sequence[int]], Sequence[Sequence[int]]]
    ) -> None:
        """All ranks take the largest of all. One that has no part of a tensor has measured nothing of it. ``tell`` tells all
        ranks whole numbers, and gives everyone's.
        """
        keys = [(text, name) for text in methods for name in names]
        losses = [self.of.get(text, {}).get(name, 0.0) for text, name in keys]
        rows = tell([int(_MILLION * min(_MOST, lost)) for lost in losses]) if keys else []
        for k, (text, name) in enumerate(keys):
            self.of.setdefault(text, {})[name] = max(row[k] for row in rows) / _MILLION
