import csv
import io
import os

import pytest

from grace.bench.compare import Outcome, document, with_baseline
from grace.bench.config import RunConfig
from grace.bench.results import curves_csv, file_name, quartiles, summary_csv
from grace.bench.scratch import Scratch, write_atomically
from grace.errors import ConfigurationError, TransportError


def result(method="none", final=0.9, **changes):
    point = {"epoch": 1.0, "step": 10, "seconds": 2.0, "sent_bytes": 5000, "train_loss": 0.1, "accuracy": final}
    return {
        "task": "digits", "method": method, "workers": 2, "seed": 0, "granularity": "parameter", "metric": "accuracy",
        "better": "higher", "final": final, "best": final, "steps": 10, "batch_per_worker": 32,
        "environment": {"cores": 2}, "optimizer": {"why": None},
        "model": {"parameters": 10, "tensors": 2, "compressed_parameters": 5, "compressed_tensors": 1},
        "traffic": {"sent_bytes_per_step": 500.0, "relative_to_fp32": 0.5, "rounds_per_step": 1.0},
        "time": {"step_ms": {"median": 1.0, "low": 0.5, "high": 2.0}, "codec_ms": 0.1, "exchange_ms": 0.2},
        "curve": [{**point, "epoch": 0.0, "step": 0, "seconds": 0.0, "sent_bytes": 0, "accuracy": 0.1}, point],
        **changes,
    }  # fmt: skip


def test_curves_are_tidy():
    lines = list(csv.DictReader(io.StringIO(curves_csv([result(), result("topk:ratio=0.01,memory=none")]))))
    assert len(lines) == 4
    assert {line["method"] for line in lines} == {"none", "topk:ratio=0.01,memory=none"}
    assert lines[1]["accuracy"] == "0.9"


def test_the_summary_has_a_line_for_each_method():
    lines = list(csv.DictReader(io.StringIO(summary_csv([result(), result("bf16", None)]))))
    assert [line["accuracy"] for line in lines] == ["0.9", ""]


def test_no_results_make_empty_tables():
    assert curves_csv([]).strip() == ""


def test_quartiles():
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == {"low": 2.0, "median": 3.0, "high": 4.0}
    assert quartiles([7.0]) == {"low": 7.0, "median": 7.0, "high": 7.0}


def test_file_names_are_plain():
    assert file_name(RunConfig("my.tasks:Own", "topk:ratio=0.01")) == "my.tasks_Own-topk_ratio=0.01-4workers-seed0.json"


def test_the_baseline_comes_first_and_no_method_twice():
    assert with_baseline("topk:ratio=0.01,none,topk,qsgd:bits=4,bucket=64") == [
        "none", "topk:ratio=0.01", "qsgd:bits=4,bucket=64",
    ]  # fmt: skip


def test_failures_are_part_of_the_document():
    found = document([Outcome("none", result=result()), Outcome("bad", error="why")])
    assert found["failed"] == [{"method": "bad", "error": "why"}]
    assert len(found["results"]) == 1


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"steps": 0}, {"epochs": -1.0}, {"lr": 0.0}, {"seed": -1}])
def test_a_run_is_checked_before_it_starts(wrong):
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        RunConfig("digits", "none", **wrong)


def test_a_file_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "folder" / "file"
    write_atomically(path, "old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_the_cause_is_told_before_its_consequences(tmp_path):
    scratch = Scratch(tmp_path)
    scratch.fail(0, TransportError("connection lost"))
    scratch.fail(1, ValueError("the cause"))
    error = scratch.error()
    assert error is not None
    assert error.rank == 1
    assert "the cause" in str(error)


REPORT = """Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 4710)
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : {} (pid: 4711)  (SIGNAL)
"""


@pytest.mark.parametrize(("status", "killed"), [(-9, (1, "SIGKILL")), (-11, (1, "SIGSEGV")), (-15, None), (1, None)])
def test_a_worker_that_was_killed_is_found_in_the_launchers_report(tmp_path, status, killed):
    scratch = Scratch(tmp_path)
    scratch.log.write_text(REPORT.format(status))
    assert scratch.killed() == killed
