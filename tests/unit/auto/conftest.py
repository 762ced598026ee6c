from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from grace.auto import sources
from grace.auto.calibrate import Calibration
from tests.unit.auto.handles import MS, calibration


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Milliseconds of a bucket under each method, as calibration finds them; a look finds what they are then."""
    each = {"none": 40.0, "bf16": 25.0, "topk": 2.0, "qsgd:bits=4": 8.0}

    def look(transport: Any, known: Calibration, methods: Any, *, first: Any, **_: Any) -> Calibration:
        assert list(methods) == list(known.rates), "numbers of another minute must not compete with new ones"
        return replace(calibration(each), spent={**known.spent, "looks": MS})

    monkeypatch.setattr(sources, "calibrate", lambda transport, candidates, largest, **_: calibration(
        {name: ms for name, ms in each.items() if name in candidates}))  # fmt: skip
    monkeypatch.setattr(sources, "look", look)
    return each
