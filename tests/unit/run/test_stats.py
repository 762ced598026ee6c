"""Costs of a run so far."""

from __future__ import annotations

from grace.collectives import Traffic
from grace.run.stats import Stats


def test_stats():
    stats = Stats(4, steps=2, traffic=Traffic(6, 100, 120), dense_bytes=400)
    assert stats.bytes_per_step == 50
    assert stats.ratio == 2 * 3 / 4 * 400 / 100
    assert Stats(1).ratio == 1.0
    assert stats.as_dict()["rounds_per_step"] == 3
