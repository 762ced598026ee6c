"""States of outer loops that are loaded into loops of another schedule."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from grace.errors import StateError
from tests.unit.adapters.outer.training import Rank, on_ranks

SAVED = {"every": 6, "fragments": 2, "delay": 2}  # in flight after steps 1 and 2, and 4 and 5


@pytest.mark.parametrize(
    ("step", "other", "words"),
    [
        (1, {"every": 6, "fragments": 2, "delay": 1}, "1 steps into a window with fragment 0 in flight; .*delay=1 .*nothing"),
        (4, {"every": 12, "fragments": 2, "delay": 2}, "4 steps .* with fragment 1 .*every=12.*fragment 0 in flight"),
        (4, {"every": 6, "fragments": 2}, "4 steps into a window with fragment 1 in flight; .*delay=0 there is nothing"),
        (3, {"every": 8, "fragments": 2, "delay": 2}, "3 steps into a window with nothing .* there is fragment 0"),
    ],
)  # fmt: skip
def test_a_mean_in_flight_is_loaded_only_where_it_is_due(step: int, other: dict[str, int], words: str) -> None:
    def job(network: Any, rank: int) -> bool:
        worker = Rank(network, rank, "none", **SAVED)
        worker.train(step)
        saved = copy.deepcopy(worker.loop.state_dict())
        worker.loop.detach()
        again = Rank(network, rank, "none", **other)
        again.train(2)
        before, own = again.theta, again.own
        with pytest.raises(StateError, match=words):
            again.loop.load_state_dict(saved)
        assert torch.equal(again.theta, before)
        assert torch.equal(again.own, own)
        again.train(2, 14)  # as if nothing had been tried
        again.loop.sync()
        return again.loop.synchronized

    assert on_ranks(2, job) == [True, True]


@pytest.mark.parametrize("step", range(1, 8))
def test_and_there_it_is_at_every_step(step: int) -> None:
    def job(network: Any, rank: int) -> None:
        worker, ends = Rank(network, rank, "none", **SAVED), []
        worker.train(step)
        saved = copy.deepcopy(worker.loop.state_dict())
        for each in (worker, None):
            if each is None:
                each = Rank(network, rank, "none", **SAVED)
                each.loop.load_state_dict(saved)
            each.inner.state.clear()  # momentum is not the loop's
            each.train(step, 13)
            each.loop.detach()
            ends.append(each.theta)
        assert torch.equal(*ends)

    on_ranks(2, job)
