"""Workers of the bench that are forked from a server which has imported torch: most of what a worker costs is that import.

For tests of what a command makes of its workers. How they are started and ended is for those that run the command itself.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest

from grace_bench.workers import local
from tests.distributed.processes import SERVER

WORKER = "grace_bench.workers.worker"


class Forked:
    """Process with the part of ``subprocess.Popen`` that :mod:`grace_bench.workers.local` uses."""

    def __init__(self, command: Sequence[str], *, stdout: BinaryIO, env: Mapping[str, str], **_: Any):
        assert command[:-1] == [sys.executable, "-m", WORKER], "a worker over a link has an interpreter of its own"
        self._command = command
        self._process = SERVER.Process(
            target=_work, args=(command[-1], dict(env), stdout.name, os.getcwd()), daemon=True
        )
        self._process.start()
        self.terminate, self.kill = self._process.terminate, self._process.kill

    def __class_getitem__(cls, _: Any) -> type[Forked]:
        return cls

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (status := self.poll()) is None:
            raise subprocess.TimeoutExpired(self._command, timeout or 0.0)
        return status


def _work(scratch: str, environment: Mapping[str, str], log: str, folder: str) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
    sys.argv = [WORKER, scratch]
    from grace_bench.workers.worker import main

    try:
        with contextlib.suppress(KeyboardInterrupt):
            main()
    finally:
        atexit._run_exitfuncs()  # which such a process skips


def fork_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of this process fork their workers."""
    monkeypatch.setattr(local, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": Forked}))
