"""The same gradients for all toolkits, and the means that they must all have: the simulator's, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import grace

STEPS, WORLD = 10, 2
METHODS = ("topk:ratio=0.1", "qsgd:bits=4", "powersgd:rank=2", "thc", "sidco:ratio=0.05")
SHAPES = {"conv/kernel": (3, 3, 4, 8), "dense/kernel": (48, 32), "dense/bias": (32,)}


def policy(method: str) -> grace.Policy:
    """All tensors are compressed."""
    return grace.Policy([("*", method)])


def gradients(rank: int, step: int) -> dict[str, Tensor]:
    """In float32 and in the layout of the toolkits."""
    rng = torch.Generator().manual_seed(1000 * rank + step)
    return {name: torch.randn(shape, generator=rng) for name, shape in SHAPES.items()}


def expect(method: str, steps: int = STEPS) -> list[list[Tensor]]:
    """The means of each step. With two workers the network's sums are the simulator's, too: a + b is b + a."""
    sim = grace.Simulator(policy(method), world=WORLD)
    expected = []
    for step in range(steps):
        xs = [gradients(rank, step) for rank in range(WORLD)]
        flat = {n: [x[n].reshape(-1, s[-1]) if len(s) > 2 else x[n] for x in xs] for n, s in SHAPES.items()}
        expected.append([mean.view(SHAPES[name]) for name, mean in sim.step(flat).items()])
    return expected


def compare(method: str, rank: int, mean: Callable[[Sequence[Tensor]], Sequence[Tensor]], steps: int = STEPS) -> None:
    """Fails unless ``mean``, a toolkit's exchange in torch's tensors, is the simulator's to the bit in each step."""
    for step, expected in enumerate(expect(method, steps)):
        means = mean(list(gradients(rank, step).values()))
        for name, x, y in zip(SHAPES, means, expected, strict=True):
            assert x.shape == y.shape, f"{method}, step {step}: {name!r} is {tuple(x.shape)}"
            assert torch.equal(x, y), f"{method}, step {step}: {name!r} differs by {(x - y).abs().max()}"
