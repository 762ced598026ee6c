"""Costs of each test: `--seconds FILE` writes the processor's and the clock's seconds of every test, dearest first.

The processor's seconds are those of the test's process and of all that it started: they say the same on a busy machine as on
an idle one, but for what a machine's caches do. Workers that live longer than a test are counted in the test that uses them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

OWN = "seconds"


def used() -> float:
    """Seconds of processor that this process and its descendants have taken so far, those that ended included."""
    here = psutil.Process()
    total = 0.0
    for process in (here, *here.children(recursive=True)):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.Error:  # ended meanwhile: its parent has its seconds
            continue
    return total


class Recorder:
    """Writes one line for each test, `processor clock name`, in the process that hands the tests out: as they end, so that
    a run that is broken off leaves them, and dearest first at the end.

    ``writes``: whether this is that process.
    """

    def __init__(self, file: Path, writes: bool = True) -> None:
        self.file, self.writes = file, writes
        if writes:
            file.unlink(missing_ok=True)
        self.rows: dict[str, tuple[float, float]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        item.stash[_BEFORE] = used(), time.monotonic()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[pytest.TestReport]:
        report: pytest.TestReport = yield
        if call.when == "teardown":
            cpu, wall = item.stash[_BEFORE]
            report.user_properties.append((OWN, (used() - cpu, time.monotonic() - wall)))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == OWN:
                row = report.nodeid.rpartition("@")[0] or report.nodeid
                self.rows[row] = tuple(value)
                if self.writes:
                    self._write("a", [row])

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.writes:
            self._write("w", sorted(self.rows, key=lambda row: -self.rows[row][0]))

    def _write(self, mode: str, rows: list[str]) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open(mode, encoding="utf-8") as out:
            out.writelines("{:.2f}\t{:.2f}\t{}\n".format(*self.rows[row], row) for row in rows)


_BEFORE: pytest.StashKey[tuple[float, float]] = pytest.StashKey()
