"""A session between real processes: fragments of a model in turn, an exchange of one's own, a rank that fails."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import grace
from grace.collectives import AllReduce, Exchange
from grace.errors import InputError, TransportError
from grace.run.options import Options
from grace.run.session import Session
from grace.run.simulator import Simulator
from grace.transports.torch_distributed import TorchDistributed
from tests.distributed.processes import Pool

SHAPES = {"first": (40, 8), "second": (33,), "third": (5, 5)}
NAMES = list(SHAPES)
STEPS = 5


def gradient(name: str, rank: int, step: int) -> Tensor:
    made = torch.Generator().manual_seed(100 * step + 10 * rank + NAMES.index(name))
    return torch.randn(SHAPES[name], generator=made)


def in_turn(step: int) -> list[str]:
    """Exchanges a fragment of the model in each step, in the last all."""
    return NAMES if step == STEPS - 1 else [NAMES[step % 3]]


def begin(policy: Any, **options: Any) -> Session:
    like = {name: torch.empty(shape) for name, shape in SHAPES.items()}
    return Session(like, policy, TorchDistributed.of_same_ranks(), Options(**options))


def fragments(rank: int, world: int, spec: str) -> tuple[list[dict[str, Any]], tuple[int, int]]:
    session, means = begin(grace.Policy([("*", spec)]), check=True, seed=3), []
    for step in range(STEPS):
        out = session.exchange({name: gradient(name, rank, step) for name in in_turn(step)})
        means.append({name: mean.tolist() for name, mean in out.items()})
        session.advance()
    traffic = session.stats.traffic
    session.close()
    return means, (traffic.rounds, traffic.sent)


@pytest.mark.parametrize("spec", ["topk:ratio=0.1", "qsgd:bits=4,memory=residual"])
def test_fragments_in_turn_are_what_the_simulator_says(pool: Pool, spec: str) -> None:
    simulator = Simulator(grace.Policy([("*", spec)]), pool.world, seed=3)
    expected = []
    for step in range(STEPS):
        rows = {name: [gradient(name, rank, step) for rank in range(pool.world)] for name in in_turn(step)}
        expected.append({name: mean.tolist() for name, mean in simulator.step(rows).items()})
    for rank, (means, traffic) in enumerate(pool.run(fragments, spec)):
        assert means == expected, rank
        assert traffic == (simulator.traffic[rank].rounds, simulator.traffic[rank].sent)


def average(x: Tensor) -> Exchange[Tensor]:
    return (yield AllReduce(x, donate=True))


def part_of_a_group(rank: int, world: int) -> str:
    """Rank 0 gives a part of the model where all is one tensor; the others wait for it in an exchange."""
    session = begin(grace.Policy([("*", "topk:ratio=0.1")]), granularity="model")
    with pytest.raises(InputError if rank == 0 else TransportError) as raised:
        session.exchange({name: gradient(name, rank, 0) for name in (NAMES[:1] if rank == 0 else NAMES)})
    assert session.error is raised.value
    return type(raised.value).__name__


def test_a_part_of_a_group_is_told_and_the_others_hear_of_it(pool: Pool) -> None:
    assert pool.run(part_of_a_group) == ["InputError", *["TransportError"] * (pool.world - 1)]


def own_exchange(rank: int, world: int) -> tuple[list[float], int]:
    session = begin("topk")
    mean = session.run(average(torch.full((3,), float(rank))), counted=True)
    rounds = session.stats.traffic.rounds
    session.close()
    return mean.tolist(), rounds


def test_an_exchange_of_ones_own_is_counted(pool: Pool) -> None:
    assert pool.run(own_exchange) == [([(pool.world - 1) / 2] * 3, 1)] * pool.world
