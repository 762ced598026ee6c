"""Output of ``python -m benchmarks.ladder``, and exchanges that are done again with constant arguments."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.ladder.__main__ import GOALS, HEADS, rows, verdicts
from benchmarks.ladder.recorded import Recorded, TwoLanes, record
from benchmarks.ladder.rungs import WARM
from grace.collectives import AllToAll, Collective
from grace.compute import backends, native
from grace.predict.replay import Echo
from grace.registry.policy import Policy
from grace.run.worker import Worker
from tests.patience import PATIENCE

ROUNDS: list[dict[str, tuple[float, float]]] = [
    {"F0": (0.2, 0.1), "F4": (0.24, 0.11), "F5": (0.3, 0.15), "F5b": (0.27, 0.15), "F6": (0.33, 0.17), "F7": (0.31, 0.16)},
    {"F0": (0.4, 0.2), "F4": (0.44, 0.2), "F5": (0.52, 0.3), "F5b": (0.53, 0.3), "F6": (0.6, 0.35), "F7": (0.6, 0.33)},
]  # fmt: skip


def test_prices_are_those_of_one_round() -> None:
    cells = {line[0]: dict(zip(HEADS, line, strict=True)) for line in rows(ROUNDS)}
    assert cells["F0"]["times F0"] == "1.00 (1.00 to 1.00)"
    assert cells["F4"]["more than the rung before, ms"] == "40 (40 to 40)"
    assert cells["F6"]["more than the rung before, ms"] == "55 (30 to 80), to F5"
    assert cells["F7"]["wall, ms"] == "455 (310 to 600)"
    assert cells["F6"]["times F0"] == "1.57 (1.50 to 1.65)"


def test_a_goal_that_is_missed_names_the_rung() -> None:
    missed, lanes = verdicts("1gbit", ROUNDS, GOALS["1gbit"])
    assert "F4 (F3 and the method's collectives) is the first rung above it, with 1.15" in missed
    assert "two lanes gain 4.0% (-1.9% to 10.0%) of F5's step, and are faster in 1 of 2 rounds" in lanes
    met = verdicts("10gbit", ROUNDS, 1.6)[0]
    assert met.endswith("the goal of 1.60 is met.")


@pytest.mark.skipif(backends.backend().functions is None, reason="records native calls")
@pytest.mark.parametrize("method", ["qsgd:bits=4", "efsignsgd", "topk"])
def test_an_exchange_is_done_again(method: str) -> None:
    draw = torch.Generator().manual_seed(0)
    given = {name: torch.randn(32, 64, generator=draw) for name in ("a", "b")}
    real, worker, xs = native.c, Worker(Policy.of(method), 0, 2), {name: x.clone() for name, x in given.items()}
    for _ in range(WARM):
        record(worker, xs, Echo(2))  # type: ignore[arg-type]
        worker.workspace.reset()
        worker.advance()
        for name, x in given.items():
            xs[name].copy_(x)
    recorded = record(worker, xs, Echo(2))  # type: ignore[arg-type]
    assert native.c is real
    ops = [op for _, op in recorded.stages if op is not None]
    assert recorded.stages[-1][1] is None
    assert recorded.sent == sum(op.buf.numel() * op.buf.element_size() for op in ops)
    assert all(calls for calls, _ in (recorded.stages[0], recorded.stages[-1])), "codecs are native"
    sent = ops[0].buf.clone()
    for name, x in given.items():
        xs[name].copy_(x)
    ops[0].buf.view(-1)[8:24].zero_()  # of the first wire, behind its header
    recorded.call(0)
    assert torch.equal(ops[0].buf, sent)
    recorded.run(Echo(2), codecs=True)  # type: ignore[arg-type]


class Network:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def run(self, op: Collective) -> Tensor:
        self.asked.append(int(op.buf[0, 0]))
        return op.buf


def test_two_lanes_keep_one_order_of_collectives() -> None:
    def stage(number: int, last: bool = False) -> tuple[list[Any], Collective | None]:
        return [(lambda *_: 0, ())], None if last else AllToAll(torch.tensor([[number]]))

    buckets = [Recorded([stage(10 * j), stage(10 * j + 1), stage(0, last=True)]) for j in range(3)]
    network = Network()
    lanes = TwoLanes(buckets, network)  # type: ignore[arg-type]
    for step in range(2):
        done = [threading.Event() for _ in buckets]
        for j in range(3):
            lanes.take(j, done[j].set)
        assert all(event.wait(PATIENCE) for event in done)
        assert network.asked[6 * step :] == [0, 1, 10, 11, 20, 21]
