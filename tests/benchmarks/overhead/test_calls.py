"""Single calls, a block of rows and profiles, on the CPU: the dry form of what is measured on a GPU."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.overhead import __main__ as program
from benchmarks.overhead import buckets, profiles

CPU = torch.device("cpu")


def test_calls_are_lines_of_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["overhead", "--device", "cpu", "--calls", "--samples", "4", "--lines"])
    program.main()
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["operation"] for row in rows] == [
        "a Python call", "x.add_(1), 1,000 numbers", "torch.empty(1,000)", "torch's all-gather, one rank",
        "an all-gather of Grace's transport, one rank",
    ]  # fmt: skip
    assert all(row["unit"] == "us" and row["value"] > 0 for row in rows)


def test_a_block_of_rows_is_scattered() -> None:
    rows = list(buckets.measure(["qsgd:bits=4"], 4, CPU, [(8, 4), (16,)], scatters=True))
    assert [row["operation"] for row in rows] == [
        "a copy of a block of rows of 2 tensors, 48 numbers",
        "qsgd:bits=4, block of rows of 2 tensors, 48 numbers, 4 workers",
    ]


def test_kinds_of_measurements_exclude_each_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["overhead", "--device", "cpu", "--calls", "--steps"])
    with pytest.raises(SystemExit):
        program.main()
    assert "--steps or --calls: one at a time" in capsys.readouterr().err


def test_profiles_are_files(tmp_path: Path) -> None:
    text = profiles.profile_buckets("qsgd:bits=4", CPU, tmp_path, 5, [(30, 4)]).read_text()
    assert text.startswith("5 exchanges of a bucket under qsgd:bits=4\n")
    assert "exchange" in text
    trace = profiles.profile_steps("topk", CPU, tmp_path, layers=1, width=64)
    assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["qsgd_bits=4.buckets.txt", "topk.steps.json.gz"]
