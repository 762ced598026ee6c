"""Shares of a run's time, by which learners that come back find the learning rate of all; and the verdict on a run."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.decoupled import judge, share_of_time, table


@pytest.mark.parametrize(
    ("until", "now", "share"),
    [(None, 7.0, 0.0), (200.0, 50.0, 0.0), (200.0, 100.0, 0.0), (200.0, 150.0, 0.5), (200.0, 200.0, 1.0), (200.0, 300.0, 1.0)],
)  # fmt: skip
def test_the_share_is_that_of_the_time_from_the_beginning_to_the_end(until: float | None, now: float, share: float):
    assert share_of_time(until, 100.0, now) == share


def row(steps: list[int], loss: float, stop: float = 0.5) -> dict[str, Any]:
    return {
        "run": "r", "kills": 0, "steps": steps, "longest pause": 0.5, "longest stop": stop, "metric": "loss",
        "better": "lower", "scores": {"loss": loss}, "syncer": {"merges": 3},
    }  # fmt: skip


def test_a_run_meets_the_goals_if_others_train_on_and_lose_nothing():
    rows = [row([9, 100, 100], 2.0), row([1, 96, 95], 2.03), row([9, 90, 90], 2.0), row([9, 100, 100], 2.05),
            row([9, 100, 100], 2.0, stop=1.1)]  # fmt: skip
    judge(rows)
    assert [each["met"] for each in rows] == [True, True, False, False, False]
    assert rows[1]["goodput of the others"] == 0.955
    assert [each["stops"] for each in rows] == [False] * 4 + [True]
    lines = table(rows).splitlines()
    assert lines[0].split(" | ")[1:3] == ["goodput of the others", "longest stop, s"]
    assert lines[3] == "| r | 95.5% | 0.50 | 0.50 | 0 | 3 | 2.0300 | +1.5% | yes |"
