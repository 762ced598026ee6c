from __future__ import annotations

import pytest

from benchmarks.codecs import overlap
from benchmarks.codecs.floors import Floors
from grace_bench.codecs.clock import Clock
from tests.unit.kernels.native_checks import needs_native

HERE = Floors(byte=1e-11, cycle=0.25e-9, add=0.2e-9, threads=1)


def test_the_larger_of_both_is_the_floor() -> None:
    line = overlap.row(overlap.Passes("thc", 20.0, lambda _: lambda: None), HERE, arithmetic=1e-9, measured=1.1e-9)
    assert line == ["thc", "64", "5.00", "1.00", "5.00", "6.00", "5.50", "5.8"]
    line = overlap.row(
        overlap.Passes("sketch", 100.0, lambda _: lambda: None), HERE, arithmetic=0.5e-9, measured=1.5e-9
    )
    assert line == ["sketch", "32", "2.50", "5.00", "5.00", "7.50", "7.50", "4"]


@needs_native
def test_the_passes_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "Clock", lambda limit, now: Clock(limit, eviction=1 << 16, now=now))
    overlap.main(["--elements", "40000", "--samples", "3"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["method", "thc", "sketch"]
    assert all(float(word) > 0 for line in lines[2:] for word in line.split()[1:])


@pytest.mark.parametrize("wrong", [["--elements", "0"], ["--samples", "0"]])
def test_what_cannot_be_measured_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        overlap.main(wrong)
    assert ended.value.code == 2
    assert "legal: at least" in capsys.readouterr().err
