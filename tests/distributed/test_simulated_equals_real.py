"""The simulator against real gloo processes: equal to the bit, but for the order in which a real all-reduce adds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from grace.policy import Policy
from grace.run.drive import drive
from grace.run.simulator import Simulator
from grace.run.traced import Tracer
from grace.run.worker import Worker
from grace.transports.torch_distributed import TorchDistributed
from tests.distributed.processes import Pool
from tests.laws.cases import CASES

STEPS = 3
SHAPES = {"conv": (8, 3, 3, 3), "matrix": (40, 33), "vector": (1000,), "one": (1,), "scalar": (), "empty": (0, 4)}


def gradients(rank: int, step: int) -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(1000 * step + rank)
    return {name: torch.randn(shape, generator=made) for name, shape in SHAPES.items()}


def real(rank: int, world: int, spec: object) -> tuple[list[dict[str, list[float]]], tuple[int, int, int]]:
    worker, tracer, transport = Worker(Policy([("*", spec)]), rank, world), Tracer(rank, world), TorchDistributed()
    means = []
    for step in range(STEPS):
        outs = drive(tracer.traced(worker.exchange(gradients(rank, step))), transport)
        means.append({name: out.mean.flatten().tolist() for name, out in outs.items()})
        worker.advance()
        worker.workspace.reset()
    traffic = tracer.traffic
    return means, (traffic.rounds, traffic.sent, traffic.received)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_simulated_equals_real(case: object, pool: Pool) -> None:
    spec = case.method  # type: ignore[attr-defined]
    results = pool.run(real, spec)
    simulator = Simulator(Policy([("*", spec)]), pool.world)
    expected = [
        simulator.step({name: [gradients(rank, step)[name] for rank in range(pool.world)] for name in SHAPES})
        for step in range(STEPS)
    ]
    for rank, (means, traffic) in enumerate(results):
        assert means == results[0][0], "replicas differ"
        assert traffic == (
            simulator.traffic[rank].rounds,
            simulator.traffic[rank].sent,
            simulator.traffic[rank].received,
        )
        for step in range(STEPS):
            for name in SHAPES:
                mean = torch.tensor(means[step][name]).view(SHAPES[name])
                torch.testing.assert_close(mean, expected[step][name], rtol=case.real_rtol, atol=case.real_atol)  # type: ignore[attr-defined]
