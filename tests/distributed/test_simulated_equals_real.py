"""The simulator against real gloo processes: equal to the bit, but for the order in which a real all-reduce adds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import grace
from grace.collectives import Exchange
from grace.contract.method import Method
from grace.registry.policy import Policy
from grace.run.drive import drive
from grace.run.simulate import simulate
from grace.run.simulator import Simulator
from grace.run.worker import Worker
from grace.transports.torch_distributed import TorchDistributed
from grace.transports.traced import Tracer
from grace.verify import laws
from grace.verify.inputs import normal
from tests.distributed.processes import Pool
from tests.laws.cases import CASES, KNOBS, spell_case

STEPS = 3
SHAPES = {"conv": (8, 3, 3, 3), "matrix": (40, 33), "vector": (1000,), "one": (1,), "scalar": (), "empty": (0, 4)}


def gradients(rank: int, step: int) -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(1000 * step + rank)
    return {name: torch.randn(shape, generator=made) for name, shape in SHAPES.items()}


def real(rank: int, world: int, method: Method[Any]) -> tuple[list[dict[str, list[float]]], tuple[int, int, int]]:
    worker, tracer, transport = Worker(Policy([("*", method)]), rank, world), Tracer(rank, world), TorchDistributed()
    means = []
    for step in range(STEPS):
        outs = drive(tracer.trace(worker.exchange(gradients(rank, step))), transport)
        means.append({name: out.mean.flatten().tolist() for name, out in outs.items()})
        worker.advance()
        worker.workspace.reset()
    traffic = tracer.traffic
    return means, (traffic.rounds, traffic.sent, traffic.received)


def conversation(method: Method[Any]) -> tuple[str, ...]:
    """Conversation of a method with the network in some steps, without the sizes: its collectives, their operations and
    dtypes.
    """
    asked: list[str] = []
    states: list[Any] = [method.init(torch.ones(12, 8)) for _ in range(2)]
    for step in range(2):
        xs, peers = (
            [normal(12, 8, seed=step)(rank) for rank in range(2)],
            [grace.Peer(r, 2, step, "w") for r in range(2)],
        )
        runs = [method.exchange(x, state, peer) for x, state, peer in zip(xs, states, peers, strict=True)]
        outs = simulate([watch(runs[0], asked), *runs[1:]])
        states = [out.state for out in outs]
    return tuple(asked)


def watch(exchange: Exchange[Any], asked: list[str]) -> Exchange[Any]:
    """The exchange as it is; what it asks for is noted."""
    answer = None
    while True:
        try:
            op = next(exchange) if answer is None else exchange.send(answer)
        except StopIteration as stop:
            return stop.value
        asked.append(f"{type(op).__name__} {getattr(op, 'op', '')} {op.buf.dtype}")
        answer = yield op


def first_of_each() -> set[str]:
    """A case of each conversation with each kind of wire: real processes add nothing but the network to what is simulated."""
    first: dict[Any, str] = {}
    for spec, method in CASES.items():
        if getattr(method, "server", 0) < 2:  # one that is among two
            first.setdefault((conversation(method), laws.varies(method)), spec)
    return set(first.values())


NARROW = ("fp16", "bf16")  # the network adds up in 11 or 8 bits, in an order of its own


CONVERSATIONS = first_of_each()
FIRST = CONVERSATIONS | {spell_case(name, knobs[0]) for name, knobs in KNOBS.items()}
NIGHT = pytest.mark.night("mean without 1/W", "rows in another order", "maximum that adds", "another root")
ALL = [spec if spec in FIRST else pytest.param(spec, marks=NIGHT) for spec in CASES]


@pytest.mark.parametrize("spec", ALL)
def test_simulated_equals_real(spec: str, pool: Pool) -> None:
    check(spec, pool)


@pytest.mark.tier("test")
@pytest.mark.parametrize("spec", sorted(CONVERSATIONS))
def test_simulated_equals_real_between_two(spec: str, pair: Pool) -> None:
    check(spec, pair)


def check(spec: str, pool: Pool) -> None:
    method = CASES[spec]
    results = pool.run(real, method)
    simulator = Simulator(Policy([("*", method)]), pool.world)
    expected = [
        simulator.step({name: [gradients(rank, step)[name] for rank in range(pool.world)] for name in SHAPES})
        for step in range(STEPS)
    ]
    rtol = 2e-2 if spec.startswith(NARROW) else 1e-4
    for rank, (means, moved) in enumerate(results):
        assert means == results[0][0], "replicas differ"
        traffic = simulator.traffic[rank]
        assert moved == (traffic.rounds, traffic.sent, traffic.received)
        for step in range(STEPS):
            for name, shape in SHAPES.items():
                mean = torch.tensor(means[step][name]).view(shape)
                torch.testing.assert_close(mean, expected[step][name], rtol=rtol, atol=rtol / 10)
