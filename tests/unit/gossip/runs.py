"""Consensus without training: how near workers come to their average, and how far that drifts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from grace.contract.conversation import Conversation
from grace.contract.peer import Peer
from grace.run.simulate import simulate


def draw(world: int, n: int = 1000) -> list[Tensor]:
    """``[n]`` for each worker."""
    made = torch.Generator().manual_seed(0)
    return [torch.randn(n, generator=made) for _ in range(world)]


def distance(xs: Sequence[Tensor], of: Sequence[Tensor] | None = None) -> float:
    """The sum of squared distances to the average of these, or of others."""
    mean = sum(of or xs) / len(xs)
    return float(sum((x - mean).double().square().sum() for x in xs))


class Talks:
    """Workers that hold the same conversation, step by step."""

    def __init__(self, talk: Conversation[Any], xs: Sequence[Tensor]):
        self.talk, self.xs, self.step = talk, list(xs), 0
        self.states = [talk.init(x) for x in xs]
        self.finite = True

    def run(self, steps: int = 1, after: Callable[[], None] = lambda: None) -> Talks:
        world = len(self.xs)
        for _ in range(steps):
            runs = [
                self.talk.exchange(x, state, Peer(r, world, self.step, "x"))
                for r, (x, state) in enumerate(zip(self.xs, self.states, strict=True))
            ]
            outs: list[Any] = simulate(runs)
            self.xs, self.states = [out.mean for out in outs], [out.state for out in outs]
            self.finite = all(out.finite for out in outs)
            self.step += 1
            after()
        return self


def consensus(talk: Conversation[Any], world: int, steps: int = 200) -> tuple[float, float]:
    """(squared distance to the first average relative to that at the start, largest drift of the average)."""
    xs = draw(world)
    end = Talks(talk, xs).run(steps).xs
    drift = (sum(end) / world - sum(xs) / world).abs().max()
    return distance(end, xs) / distance(xs), float(drift)
