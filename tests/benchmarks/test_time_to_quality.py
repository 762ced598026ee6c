"""Output of ``python -m benchmarks.time_to_quality``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.time_to_quality import Reached, find_places, judge, largest, main, table
from grace_bench.survey.evidence import quality_of
from grace_bench.survey.frontier import Multiple, Place

ONE = Multiple("reached", 1.0, 1.0, 1.0, 1.0, 3, 3)
SLOWER = Multiple("reached", 1.2, 1.0, 1.5, 1.0, 3, 3)
NEVER = Multiple("not reached", math.inf, None, None, 1.1, 3, 0)
FEW = Multiple("reached", 1.1, None, None, 1.0, 1, 1)


def place(steps: Multiple) -> Place:
    return Place(quality_of([2.0, 2.0, 2.0], higher=False), 0.0, steps, 1.0, 1.0, True)


PLACES = {"bf16": place(ONE), "qsgd:bits=4": place(SLOWER), "topk": place(NEVER), "powersgd": place(FEW)}
STEADY = {"ddp-bf16": 0.2, "ddp-fp32": 0.4, "ddp-powersgd": 0.1, "topk:ratio=0.01": 0.05, "auto:goal=time": 0.1}
CHOICE = {"chosen": "another for each bucket", "methods": ["fp32", "qsgd:bits=4"], "spent": 6.0}
RECORD: dict[str, Any] = {
    "rounds": [{**STEADY, "qsgd:bits=4": seconds} for seconds in (0.1, 0.12, 0.08)],
    "autos": {"auto:goal=time": CHOICE},
}


def test_seconds_are_steps_times_the_time_of_a_step() -> None:
    results = judge(RECORD, 1000, PLACES)
    assert results["ddp-bf16"].seconds == pytest.approx(200)
    assert results["ddp-fp32"].seconds == pytest.approx(400)  # counts as bf16: nobody ran it
    assert str(results["qsgd:bits=4"]) == "120 (80 to 180)"  # 1000 steps of 80 ms; 1500 of 120
    assert str(results["auto:goal=time"]) == "126 (106 to 156)"  # and what it spent


def test_nothing_is_said_of_who_never_came_there_or_was_not_measured() -> None:
    results = judge(RECORD, 1000, PLACES)
    assert str(results["topk:ratio=0.01"]) == "not reached"
    assert str(results["ddp-powersgd"]) == "110 (fewer than three seeds)"
    assert str(Reached(1000, largest(["drive"], PLACES), [0.1])) == "nobody measured its steps"
    assert largest(["qsgd:bits=4", "drive"], PLACES) is None
    lines = table(RECORD, results)
    assert [line[0] for line in lines[:2]] == ["PowerSGD, torch's hook", "qsgd:bits=4"]
    assert lines[-1][0] == "topk:ratio=0.01", "it is the fastest by the step, and comes last"
    assert lines[-1][-1] == "-"
    assert lines[1][1:] == ["100 (80 to 120)", "1.2 (1 to 1.5)", "120 (80 to 180)", "1.67"]


def test_a_plan_counts_the_largest_multiple_of_its_methods() -> None:
    assert largest(["fp32", "bf16"], PLACES) == ONE
    assert largest(["bf16", "qsgd:bits=4"], PLACES) == SLOWER
    assert largest(["qsgd:bits=4", "topk:ratio=0.01"], PLACES) == NEVER
    assert largest([], PLACES) is None


def test_an_archive_without_the_task_is_told() -> None:
    with pytest.raises(SystemExit, match="no runs of bf16 on 'gpt_tiny'; make some: grace survey run"):
        find_places([], "gpt_tiny")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--archive", "nowhere.parquet"], "nowhere.parquet"),
        (["--methods", "qsgd;topkk"], "did you mean 'topk'"),
        (["--link", "3parsec"], "unknown link '3parsec'"),
        (["--workers", "0"], "--workers: invalid choice: 0"),
    ],
)
def test_bad_options_are_told_before_anything_is_measured(
    given: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
