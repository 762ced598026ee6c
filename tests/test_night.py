"""The night runs every part to its end, and says what became of each."""

from __future__ import annotations

import subprocess

import pytest

from tests import night


def test_a_part_that_fails_stops_no_other_and_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    assert night.main(["first: echo one", "second: exit 3", "third: echo three"]) == 1
    out = capfd.readouterr().out
    assert out.count("three") == 1
    assert [line.partition("minutes  ")[2] for line in out.splitlines()[-3:]] == [
        "first: held", "second: failed, exit 3", "third: held",
    ]  # fmt: skip


def test_a_night_in_which_all_held() -> None:
    assert night.main(["first: true", "second: true"]) == 0


def test_what_is_broken_off_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(command: str, **_: object) -> subprocess.CompletedProcess[str]:
        if command == "long":
            raise KeyboardInterrupt
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        night.main(["first: short", "second: long", "third: short"])
    assert [line.split("  ")[-1].strip() for line in capsys.readouterr().out.splitlines()[-3:]] == [
        "first: held", "second", "third",
    ]  # fmt: skip
