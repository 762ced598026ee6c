"""The simulator against real gloo processes: equal to the bit, but for the order in which a real all-reduce adds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from grace.contract.method import Method
from grace.registry.policy import Policy
from grace.run.drive import drive
from grace.run.simulator import Simulator
from grace.run.worker import Worker
from grace.transports.torch_distributed import TorchDistributed
from grace.transports.traced import Tracer
from tests.distributed.processes import Pool
from tests.laws.cases import CASES

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


NARROW = ("fp16", "bf16")  # the network adds up in 11 or 8 bits, in an order of its own


@pytest.mark.parametrize("spec", CASES)
def test_simulated_equals_real(spec: str, pool: Pool) -> None:
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
