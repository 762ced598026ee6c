import json
import sys

import pytest
import torch

from benchmarks.overhead import __main__ as program
from benchmarks.overhead.steps import measure


def test_a_step_is_a_row_for_each_method_beside_plain_training() -> None:
    rows = measure(["none", "topk"], 4, torch.device("cpu"), layers=1, width=64)
    assert [row["operation"] for row in rows] == [
        "a step of plain DDP, 1 layers of width 64, one worker",
        "none: a step / plain DDP, 1 layers of width 64, one worker",
        "topk: a step / plain DDP, 1 layers of width 64, one worker",
    ]
    assert all(0 < row["low"] <= row["value"] <= row["high"] and row["samples"] == 4 for row in rows)


def test_the_program_measures_steps(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(program.steps.measure, "__defaults__", (1, 64, None))
    given = ["--device", "cpu", "--steps", "--methods", "none", "--samples", "4", "--json"]
    monkeypatch.setattr(sys, "argv", ["overhead", *given])
    program.main()
    assert [row["unit"] for row in json.loads(capsys.readouterr().out)] == ["ms", "x"]


def test_steps_are_of_a_device(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["overhead", "--steps"])
    with pytest.raises(SystemExit) as stopped:
        program.main()
    assert stopped.value.code == 2
    assert "--steps needs --device" in capsys.readouterr().err
