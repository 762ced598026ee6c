"""The table of ``python -m benchmarks.trials``."""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
from pathlib import Path

import pytest

from benchmarks.trials import MADE_UP, RATIOS, main, measured


def test_noise_of_trials_that_have_run(tmp_path: Path) -> None:
    path = tmp_path / "cell.json"
    pairs = [[0.30, 0.27], [0.30, 0.30], [0.30, 0.33]]
    path.write_text(json.dumps({"auto": {"trials": [{"pairs": pairs}, {"pairs": pairs[:2]}]}}))
    drawn = set(itertools.islice(measured([path])(random.Random(0)), 200))
    logs = [math.log(0.9), 0.0, math.log(1.1)]
    scale = math.sqrt(1.5)
    expected = [scale * (value - statistics.mean(logs)) for value in logs]
    assert sorted(drawn) == pytest.approx(sorted([*expected, *(-value for value in expected)])), "and no trial of two"


def test_a_line_for_each_noise_and_rule(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--trials", "2"])
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 2 + 2 * len(MADE_UP)
    assert {len(line) for line in lines} == {2 + len(RATIOS)}
    assert lines[2][:3] == ["| 1 %", "odds", "100.0 %, 6"]
