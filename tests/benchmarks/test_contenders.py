"""Workers of a benchmark end with the command that started them, in whatever way that does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tests.tiers import ROOT

LINES = """
import os, sys, time
from benchmarks import contenders
if "RANK" in os.environ:
    contenders.join()
    open(sys.argv[1] + os.environ["RANK"], "w").write(str(os.getpid()))
    time.sleep(600)
else:
    contenders.start("sleeper", "none", 2)
"""


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.night("a worker that outlives its command")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_worker_outlives_a_command_that_is_ended(number: int, tmp_path: Path) -> None:
    (tmp_path / "sleeper.py").write_text(LINES)
    command = subprocess.Popen(
        [sys.executable, "-m", "sleeper", str(tmp_path / "pid")],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    files = [tmp_path / f"pid{rank}" for rank in range(2)]
    deadline = time.monotonic() + PATIENCE
    while not all(file.exists() and file.read_text() for file in files):
        assert time.monotonic() < deadline
        assert command.poll() is None
        time.sleep(0.1)
    workers = [int(file.read_text()) for file in files]
    assert all(map(runs, workers))
    command.send_signal(number)
    assert command.wait(PATIENCE) != 0
    deadline = time.monotonic() + PATIENCE
    while any(map(runs, workers)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
