"""torchrun's agent, which ends with the command that started it.

``python -m grace_bench.workers.agent SCRATCH ARGUMENTS...``
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from grace_bench.files import write_atomically
from grace_bench.workers.scratch import Scratch

_STOP_SECONDS = 8.0  # how long torchrun may take to end its workers


def main() -> None:
    """Starts workers and waits for them; notes which one a signal ended."""
    scratch, left = Scratch(Path(sys.argv[1])), threading.Event()
    signal.signal(
        signal.SIGTERM, lambda number, frame: sys.exit(128 + number)
    )  # until torchrun has a handler of its own

    def leave() -> None:
        left.set()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_STOP_SECONDS)
        kill_children(os.getpid())
        shutil.rmtree(scratch.folder, ignore_errors=True)  # what follows skips the ``finally`` below
        os.kill(os.getpid(), signal.SIGKILL)

    try:
        scratch.watch(leave)  # inside the try: if the command has ended already, the signal comes before this returns
        _run(scratch, sys.argv[2:])
    finally:
        if left.is_set():
            shutil.rmtree(scratch.folder, ignore_errors=True)  # the command that made it is gone


def _run(scratch: Scratch, arguments: list[str]) -> None:
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        run.main(arguments)
    except ChildFailedError as error:
        first_killed = find_killed((one.timestamp, rank, one.exitcode) for rank, one in error.failures.items())
        if first_killed is not None:
            write_atomically(scratch.killed, "{} {}".format(*first_killed))
        sys.exit(1)


def find_killed(failures: Iterable[tuple[int, int, int]]) -> tuple[int, str] | None:
    """The rank that a signal ended first, and the signal's name; None if there is none.

    Args:
        failures: time, rank and exit status of each worker that failed.
    """
    for _, rank, status in sorted(failures):
        if status < 0 and -status != signal.SIGTERM:  # that is how torchrun ends the others
            with contextlib.suppress(ValueError):
                return rank, signal.Signals(-status).name
    return None


def kill_children(pid: int) -> None:
    """Kills everything that a process has started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def kill_tree(pid: int) -> None:
    """Kills a process and everything that it has started."""
    kill_children(pid)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).kill()


if __name__ == "__main__":
    main()
