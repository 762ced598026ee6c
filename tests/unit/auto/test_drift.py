"""A change of pace is noticed, and noise is none."""

from __future__ import annotations

import random
import statistics

import pytest

from grace.auto.drift import Drift
from tests.unit.auto.simulated import mild


def blocks(seed: int, count: int, change: float) -> list[int]:
    rng = random.Random(seed)
    return [
        int(1e6 * statistics.median(mild(rng, 0) * (1 + change * (block >= 20)) for _ in range(16)))
        for block in range(count)
    ]


@pytest.mark.parametrize(("change", "within"), [(0.25, 5), (0.10, 30), (-0.20, 8)])
def test_a_change_of_pace_is_noticed(change: float, within: int) -> None:
    late = []
    for seed in range(30):
        drift = Drift()
        late.append(next((k for k, median in enumerate(blocks(seed, 100, change)) if drift.alarm(median)), 1000) - 20)
    assert statistics.median(late) <= within
    assert min(late) >= 0


def test_without_a_change_there_is_no_alarm() -> None:
    assert not any(any(map(Drift().alarm, blocks(seed, 300, 0.0))) for seed in range(8))
