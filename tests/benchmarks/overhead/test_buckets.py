import json
import sys

import pytest
import torch

from benchmarks.overhead import __main__ as program
from benchmarks.overhead.buckets import METHODS, measure
from grace.registry import method, spell


def test_a_bucket_is_a_row_for_each_method_beside_a_copy():
    rows = list(measure(["none", "topk"], 4, torch.device("cpu"), [(300, 4), (7,)]))
    assert [row["operation"] for row in rows] == [
        "a copy of a bucket of 2 tensors, 1,207 numbers",
        "none, bucket of 2 tensors, 1,207 numbers, 4 workers",
        "topk, bucket of 2 tensors, 1,207 numbers, 4 workers",
    ]
    assert all(0 < row["low"] <= row["value"] <= row["high"] and row["samples"] == 4 for row in rows)


def test_the_methods_are_known():
    assert len({spell(method(spec)) for spec in METHODS}) == len(METHODS)


def test_the_program_measures_the_methods_that_it_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(program.buckets, "SHAPES", [(5,)])
    monkeypatch.setattr(sys, "argv", ["overhead", "--device", "cpu", "--methods", "none", "--samples", "4", "--json"])
    program.main()
    assert [row["unit"] for row in json.loads(capsys.readouterr().out)] == ["us", "us"]


@pytest.mark.parametrize(
    ("given", "message"),
    [(["--device", "tpu9"], "tpu9"), (["--device", "cpu", "--methods", "topq"], "topq")],
)
def test_what_cannot_be_measured_is_refused(
    given: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", ["overhead", *given])
    with pytest.raises(SystemExit) as stopped:
        program.main()
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
