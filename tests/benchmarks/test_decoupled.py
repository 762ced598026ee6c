"""Shares of a run's time, by which learners that come back find the learning rate of all."""

from __future__ import annotations

import pytest

from benchmarks.decoupled import share_of_time


@pytest.mark.parametrize(
    ("until", "now", "share"),
    [(None, 7.0, 0.0), (200.0, 50.0, 0.0), (200.0, 100.0, 0.0), (200.0, 150.0, 0.5), (200.0, 200.0, 1.0), (200.0, 300.0, 1.0)],
)  # fmt: skip
def test_the_share_is_that_of_the_time_from_the_beginning_to_the_end(until: float | None, now: float, share: float):
    assert share_of_time(until, 100.0, now) == share
