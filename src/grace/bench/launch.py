"""Runs the workers of a training run as real processes, under torchrun's elastic launcher."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from grace.bench.config import RunConfig
from grace.bench.results import file_name
from grace.bench.scratch import Scratch, write_atomically
from grace.errors import GraceError

_POLL_SECONDS = 0.1
_STOP_SECONDS = 8.0  # how long a launcher that was asked to end may take


class RunError(GraceError, RuntimeError):
    """A training run that failed; the message is the worker's own error."""


def launch(
    config: RunConfig,
    *,
    out: Path | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    command: list[str] | None = None,
) -> dict[str, Any]:
    """Trains, and returns the result; with ``out`` it is also a file in that folder.

    No worker outlives this call, whatever ends it.

    Args:
        config: the run.
        out: folder for the result.
        on_progress: called with (steps done, steps in all), about ten times a second.
        command: what the user typed, for the record.

    Raises:
        RunError: a worker failed, was killed, or reported nothing for ``config.timeout`` seconds.
    """
    folder = Path(tempfile.mkdtemp(prefix="grace-"))
    scratch = Scratch(folder)
    try:
        asked = {"config": config.as_dict(), "parent": os.getpid(), "command": command or list(sys.argv)}
        scratch.config.write_text(json.dumps(asked))
        with _terminable(), scratch.log.open("wb") as log:
            launcher = subprocess.Popen(
                _command(config, scratch), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment(config),
                start_new_session=True,  # so that Ctrl-C comes here first, and the workers end in good order
            )  # fmt: skip
            try:
                status = _wait(launcher, scratch, config.timeout, on_progress)
            finally:
                _stop(launcher, scratch)
        if status != 0 or not scratch.result.exists():
            raise RunError(_reason(config, scratch, status))
        text = scratch.result.read_text()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if out is not None:
        write_atomically(out / file_name(config), text)
    result: dict[str, Any] = json.loads(text)
    return result


def _command(config: RunConfig, scratch: Scratch) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=0"]
    logs = [f"--log-dir={scratch.logs}", "--redirects=3"]
    return [*launcher, f"--nproc-per-node={config.workers}", *logs, "-m", "grace.bench.worker", str(scratch.folder)]


def _environment(config: RunConfig) -> dict[str, str]:
    here = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(config.threads),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # the agent's own store is not one for workers, see the transport
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5",
        "PYTHONPATH": os.getcwd() if not here else f"{here}{os.pathsep}{os.getcwd()}",  # for module:Class tasks
    }


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP end this process as Ctrl-C does: through its ``finally`` clauses."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():  # only there Python delivers signals
        yield
        return
    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(
    launcher: subprocess.Popen[bytes],
    scratch: Scratch,
    timeout: float,
    on_progress: Callable[[int, int], None] | None,
) -> int:
    """The launcher's exit status.

    Raises:
        RunError: nothing was reported for too long.
    """
    seen, since = None, time.monotonic()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return launcher.wait(_POLL_SECONDS)
        now = scratch.reported()
        if now != seen:
            seen, since = now, time.monotonic()
            if on_progress is not None and now is not None:
                on_progress(*now)
        elif time.monotonic() - since > timeout:
            raise RunError(
                f"the workers reported nothing for {timeout:.0f} s and were stopped. {scratch.tail()}".strip()
            )


def _stop(launcher: subprocess.Popen[bytes], scratch: Scratch) -> None:
    """Ends the launcher and its workers: politely, then not."""
    if launcher.poll() is not None:
        return
    launcher.terminate()
    try:
        launcher.wait(_STOP_SECONDS)
    except BaseException as error:
        for pid in [*scratch.pids(), launcher.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        launcher.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise


def _reason(config: RunConfig, scratch: Scratch, status: int) -> str:
    """Why a run failed, in the worker's own words."""
    error, killed = scratch.error(), scratch.killed()
    if killed is not None and (error is None or error.consequence):
        rank, name = killed
        hint = "; was there enough memory?" if name == "SIGKILL" else ""
        return f"{config.method}: rank {rank} of {config.workers} was ended by {name}{hint}"
    if error is None:
        tail = scratch.tail()
        return f"{config.method}: the workers ended with status {status}" + (f":\n{tail}" if tail else "")
    return f"{config.method}: rank {error.rank} of {config.workers} failed: {error}"
