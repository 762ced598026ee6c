"""Runs the workers of training runs as real processes, under torchrun's elastic launcher, on a link if one is asked for.

Workers start once for several runs that need the same of them, as starting takes seconds. A run that fails takes its
workers with it; the runs after it get new ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Protocol

from grace.bench.config import RunConfig
from grace.bench.network.namespaces import Network, environment
from grace.bench.record import file_name
from grace.bench.results import Result, decode, encode
from grace.bench.scratch import Scratch, write_atomically
from grace.errors import GraceError

_POLL_SECONDS = 0.1
_STOP_SECONDS = 8.0  # how long a launcher that was asked to end may take


class Launcher(Protocol):
    """What trains configurations one after the other, as :func:`launch_all` does on this machine."""

    def __call__(
        self,
        configs: Sequence[RunConfig],
        *,
        on_progress: Callable[[int, int, int], None] | None = None,
        command: list[str] | None = None,
    ) -> Generator[Result | RunError, None, None]:
        """Yields a result or an error for each."""


class RunError(GraceError, RuntimeError):
    """A training run that failed; the message is the worker's own error."""


def launch(
    config: RunConfig,
    *,
    out: Path | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    command: list[str] | None = None,
) -> Result:
    """Trains, and returns the result; with ``out`` it is also a file in that folder.

    No worker outlives this call, whatever ends it.

    Args:
        config: the run.
        out: folder for the result.
        on_progress: called with (steps done, steps in all).
        command: what the user typed, for the record.

    Raises:
        RunError: a worker failed, was killed, or reported nothing for ``config.timeout`` seconds.
        LinkError: the link cannot be made.
    """
    (result,) = launch_all(
        [config], command=command,
        on_progress=None if on_progress is None else lambda run, done, steps: on_progress(done, steps),
    )  # fmt: skip
    if isinstance(result, RunError):
        raise result
    if out is not None:
        write_atomically(out / file_name(config), encode(result))
    return result


def launch_all(
    configs: Sequence[RunConfig],
    *,
    on_progress: Callable[[int, int, int], None] | None = None,
    command: list[str] | None = None,
) -> Generator[Result | RunError, None, None]:
    """Trains one configuration after the other, and yields for each, as it ends, its result or the error that ended it.

    Args:
        configs: runs with the same workers, link and threads.
        on_progress: called with (index of the run, steps done, steps in all).
        command: what the user typed, for the record.

    Raises:
        LinkError: the link cannot be made.
    """
    first = configs[0]
    if any((c.workers, c.network, c.threads) != (first.workers, first.network, first.threads) for c in configs):
        raise ValueError("runs that share their workers need the same workers, link and threads")
    with terminable(), _network(first) as network:
        begin = 0
        while begin < len(configs):
            batch, done = configs[begin:], 0
            for outcome in _session(batch, network, begin, on_progress, command or list(sys.argv)):
                yield outcome
                done += 1
            begin += done


def _network(config: RunConfig) -> contextlib.AbstractContextManager[Network | None]:
    return Network(config.network, config.workers) if config.network.shaped else contextlib.nullcontext()


def _session(
    configs: Sequence[RunConfig],
    network: Network | None,
    begin: int,
    on_progress: Callable[[int, int, int], None] | None,
    command: list[str],
) -> Iterator[Result | RunError]:
    """Runs until one has failed, in one set of workers. Yields at least once."""
    folder = Path(tempfile.mkdtemp(prefix="grace-"))
    scratch, config = Scratch(folder), configs[0]
    try:
        asked = {"configs": [c.as_dict() for c in configs], "parent": os.getpid(), "command": command}
        scratch.config.write_text(json.dumps(asked))
        for name, path in ({} if network is None else network.paths()).items():
            (folder / f"net.{name}").symlink_to(path)
        with scratch.log.open("wb") as log:
            launcher = subprocess.Popen(
                _command(config, scratch, network), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=_environment(config), start_new_session=True,  # so that Ctrl-C comes here first, and workers end in order
            )  # fmt: skip
            try:
                seen = _Seen()
                for index, one in enumerate(configs):
                    status = _wait(launcher, scratch, index, one.timeout, seen, begin, on_progress)
                    if not scratch.result(index).exists():
                        yield RunError(status if isinstance(status, str) else _reason(one, scratch, status))
                        return
                    result = decode(scratch.result(index).read_bytes())
                    assert isinstance(result, Result)
                    yield result
                _wait(
                    launcher, scratch, len(configs), config.timeout, seen, begin, on_progress
                )  # they end by themselves
            finally:
                _stop(launcher, scratch)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _command(config: RunConfig, scratch: Scratch, network: Network | None) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=0"]
    logs = [f"--log-dir={scratch.logs}", "--redirects=3"]
    common = [*launcher, f"--nproc-per-node={config.workers}", *logs]
    worker = ["-m", "grace.bench.worker", str(scratch.folder)]
    if network is None:
        return [*common, *worker]
    # torchrun gives every worker the same command: a shell finds the namespace of its rank
    nets = scratch.folder / "net"
    user = f"--user={nets}.user --preserve-credentials" if "user" in network.paths() else ""
    enter = f'exec nsenter {user} --net={nets}.$RANK -- "$0" "$@"'
    return [*common, "--no-python", "sh", "-c", enter, sys.executable, "-u", *worker]


def _environment(config: RunConfig) -> dict[str, str]:
    here = os.environ.get("PYTHONPATH")
    return {
        **environment(),
        "OMP_NUM_THREADS": str(config.threads),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # the agent's own store is not one for workers, see the transport
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5",
        "PYTHONPATH": os.getcwd() if not here else f"{here}{os.pathsep}{os.getcwd()}",  # for module:Class tasks
    }


@contextlib.contextmanager
def terminable() -> Iterator[None]:
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


@dataclasses.dataclass(slots=True)
class _Seen:
    """What the workers reported last, and since when."""

    report: tuple[int, int, int] | None = None
    since: float = dataclasses.field(default_factory=time.monotonic)


def _wait(
    launcher: subprocess.Popen[bytes],
    scratch: Scratch,
    run: int,
    timeout: float,
    seen: _Seen,
    begin: int,
    on_progress: Callable[[int, int, int], None] | None,
) -> int | str:
    """Waits until this run's result is there, or the launcher has ended: its exit status, 0 while it runs; or why the
    workers were given up.
    """
    seen.since = time.monotonic()
    while not scratch.result(run).exists():
        with contextlib.suppress(subprocess.TimeoutExpired):
            return launcher.wait(_POLL_SECONDS)
        now = scratch.reported()
        if now != seen.report:
            seen.report, seen.since = now, time.monotonic()
            if on_progress is not None and now is not None:
                on_progress(begin + now[0], now[1], now[2])
        elif time.monotonic() - seen.since > timeout:
            return f"the workers reported nothing for {timeout:.0f} s and were stopped. {scratch.tail()}".strip()
    return 0


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
