"""Every registered method at work in one job: a policy that gives each method two tensors of its own, and their gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

import grace
from grace.adapters.handover import Handover
from grace.collectives import AllReduce, Collective, Exchange, ReduceScatter
from grace.registry import recipe
from grace.run.simulate import simulate
from grace.run.simulator import Simulator

STEPS = 3
METHODS = grace.methods()
SHAPES = {f"{name}/{kind}": shape for name in METHODS for kind, shape in (("matrix", (40, 24)), ("vector", (300,)))}

Means = dict[str, Tensor]
Step = Callable[[Mapping[str, Tensor]], Means]
T = TypeVar("T")


def policy() -> grace.Policy:
    """Each method for the tensors that have its name, as in its recipe's first case."""
    return grace.Policy([(f"{name}/*", _spell(name)) for name in METHODS])


def _spell(name: str) -> str:
    knobs = recipe(name).cases[0]
    return f"{name}:{knobs}" if knobs else name


def gradients(rank: int, step: int) -> Means:
    random = torch.Generator().manual_seed(1000 * rank + step)
    return {name: torch.randn(shape, generator=random) for name, shape in SHAPES.items()}


def expect(world: int) -> list[Means]:
    """The means that every door has to give in each step."""
    simulator = Simulator(policy(), world)
    return [
        simulator.step({name: [gradients(rank, step)[name] for rank in range(world)] for name in SHAPES})
        for step in range(STEPS)
    ]


def find_network_sums(name: str) -> bool:
    """True if a method lets the network add up floats: with more than two workers in an order of its own."""
    method, seen = grace.method(_spell(name)), list[Collective]()
    for like in (torch.ones(shape) for tensor, shape in SHAPES.items() if tensor.startswith(f"{name}/")):
        state = method.init(like)
        for step in range(STEPS):
            peers = [grace.Peer(rank, 2, step, "w", 0) for rank in range(2)]
            outs = simulate([_watch(method.exchange(like.clone(), state, peer), seen) for peer in peers])
            state = outs[0].state
    return any(
        isinstance(op, AllReduce | ReduceScatter) and op.op != "max" and op.buf.dtype.is_floating_point for op in seen
    )


def _watch(exchange: Exchange[T], seen: list[Collective]) -> Exchange[T]:
    """The exchange as it is; what it asks for is noted."""
    with contextlib.suppress(StopIteration):
        op = next(exchange)
        while True:
            seen.append(op)
            answer = yield op
            try:
                op = exchange.send(answer)
            except StopIteration as stop:
                value: T = stop.value
                return value
    raise AssertionError("an exchange without a collective")


def through_handover(transport: str) -> Step:
    """torch's tensors through what TensorFlow's, Keras's and JAX's doors share: in a job whose ranks have other toolkits."""
    handover = Handover(list(SHAPES), list(SHAPES.values()), ["float32"] * len(SHAPES), policy(), transport=transport)

    def step(given: Mapping[str, Tensor]) -> Means:
        means = handover.mean(list(given.values()))
        return {name: mean.clone() for name, mean in zip(SHAPES, means, strict=True) if mean is not None}

    return step


def differences(means: list[Means], expected: list[Means]) -> dict[str, str]:
    """By tensor, the first step in which its mean is not the expected one to the bit, the sign of zeros included."""
    wrong: dict[str, str] = {}
    for step, (own, want) in enumerate(zip(means, expected, strict=True)):
        assert own.keys() == want.keys(), own.keys() ^ want.keys()
        for name, x in own.items():
            if name not in wrong and not torch.equal(x.view(torch.int32), want[name].view(torch.int32)):
                wrong[name] = f"step {step}: by at most {(x - want[name]).abs().max():.2g}"
    return wrong


def read(folder: Path, door: str, transport: str, rank: int) -> list[Means] | str:
    """The means of a rank, or the error there."""
    path = folder / f"{door}-{transport}-{rank}.pt"
    means: list[Means] | str = torch.load(path) if path.exists() else "it wrote nothing"
    return means
