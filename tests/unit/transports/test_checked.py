"""A transport that compares what the ranks ask for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grace.collectives import AllGather, AllReduce, Exchange
from grace.errors import RoundMismatch
from grace.run import Checked, drive
from tests.unit.networks import Loopback, in_threads


def two_rounds() -> Exchange[str]:
    first = yield AllReduce(torch.ones(2))
    second = yield AllGather(first * 3)
    return f"{second.tolist()}"


def test_checked_lets_pass_what_agrees():
    results = in_threads(3, lambda transport, rank: drive(two_rounds(), Checked(transport)))
    assert results == ["[[3.0, 3.0], [3.0, 3.0], [3.0, 3.0]]"] * 3


def test_checked_names_what_differs_on_every_rank():
    def job(transport: Any, rank: int) -> Tensor:
        checked = Checked(transport)
        checked.run(AllReduce(torch.ones(2)))
        return checked.run(AllReduce(torch.ones(2 + rank)))

    for result in in_threads(2, job):
        assert isinstance(result, RoundMismatch)
        assert "ranks [0]: collective 2: AllReduce(mean, float32, (2,))" in str(result)
        assert "ranks [1]: collective 2: AllReduce(mean, float32, (3,))" in str(result)


def test_checked_is_like_its_transport():
    checked = Checked(Loopback())
    assert (checked.rank, checked.world) == (0, 1)


def test_checked_tells_ranks_that_are_steps_apart():
    def job(transport: Any, rank: int) -> Tensor:
        checked = Checked(transport)
        checked.step = rank
        return checked.run(AllReduce(torch.ones(2)))

    for result in in_threads(2, job):
        assert isinstance(result, RoundMismatch)
        assert "ranks [1]: step 1, collective 1: AllReduce" in str(result)
