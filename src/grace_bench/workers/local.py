"""Starts the workers of runs on this machine, each in a process, and over a link if one is asked for.

Workers start once for all runs with the same requirements, as starting takes seconds. A run that fails takes its
workers with it; the runs after it get new ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
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

from grace_bench.network.namespaces import INTERFACE, PORT, ShapedNetwork, address, environment
from grace_bench.runs.config import RunConfig
from grace_bench.runs.record import failure_of
from grace_bench.runs.results import Document, Failure, decode, encode
from grace_bench.workers.ports import free_port
from grace_bench.workers.scratch import Scratch
from grace_bench.workers.worker import Job

_POLL_SECONDS = 0.1
_STOP_SECONDS = 8.0  # how long workers may take to end


class Launcher(Protocol):
    """A function that trains configurations one after the other, as :func:`launch` does on this machine."""

    def __call__(
        self, configs: Sequence[RunConfig], *, on_progress: Callable[[int, int], None], command: list[str]
    ) -> Generator[Document, None, None]:
        """Yields the document of each run as it ends.

        Args:
            configs: runs with the same workers, link, threads and toolkit.
            on_progress: called with (steps done, steps in all) of the run that has begun.
            command: what the user typed, for the record.
        """


def launch(
    configs: Sequence[RunConfig], *, on_progress: Callable[[int, int], None], command: list[str]
) -> Generator[Document, None, None]:
    """See :class:`Launcher`. No worker outlives this call, however it ends, nor the process that made it.

    Raises:
        LinkError: the link cannot be made.
    """
    first = configs[0]
    shared = [(c.workers, c.network, c.threads, c.toolkit) for c in configs]
    if any(value != shared[0] for value in shared):
        raise ValueError("runs that share their workers need the same workers, link, threads and toolkit")
    shaped = (
        ShapedNetwork(first.network, first.workers, first.machines)
        if first.network.shaped
        else contextlib.nullcontext()
    )
    begin = 0
    with terminable(), shaped as network:
        while begin < len(configs):
            with _start(Job(list(configs[begin:]), command), network) as workers:
                for document in workers.wait(on_progress):
                    yield document
                    begin += 1


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP end this process as Ctrl-C does: through its ``finally`` clauses. A signal that is ignored stays so:
    under ``nohup`` that is SIGHUP.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():  # Python delivers signals only there
        yield
        return
    heard = [s for s in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) is not signal.SIG_IGN]
    before = {number: signal.signal(number, leave) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _start(job: Job, network: ShapedNetwork | None) -> Iterator[_Workers]:
    """Workers that go through some runs; none outlives the block."""
    with tempfile.TemporaryDirectory(prefix="grace-", ignore_cleanup_errors=True) as folder:
        scratch, processes = Scratch(Path(folder)), list[subprocess.Popen[bytes]]()
        scratch.job.write_text(encode(job))
        with scratch.held():
            try:
                shared = _environment_of(job.configs[0], network)
                for rank in range(job.configs[0].workers):
                    enter = [] if network is None else network.enter(rank)
                    with scratch.log(rank).open("wb") as log:
                        processes.append(subprocess.Popen(
                            [*enter, sys.executable, "-m", "grace_bench.workers.worker", folder], stdin=subprocess.DEVNULL,
                            stdout=log, stderr=log, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                            start_new_session=True,  # so that Ctrl-C comes here first, and workers end in order
                        ))  # fmt: skip
                yield _Workers(job, scratch, processes)
            finally:
                _stop(processes)


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ends all workers: politely, then by force."""
    deadline = time.monotonic() + _STOP_SECONDS
    for process in processes:
        process.terminate()
    try:
        for process in processes:
            process.wait(max(0.0, deadline - time.monotonic()))
    except BaseException as error:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise


def find_killed(statuses: Sequence[int | None]) -> tuple[int, str] | None:
    """The first rank that a signal has ended, and the signal's name; None if there is none. ``statuses``: exit statuses of all
    workers, None while one runs.
    """
    for rank, status in enumerate(statuses):
        if status is not None and status < 0:
            with contextlib.suppress(ValueError):
                return rank, signal.Signals(-status).name
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class _Workers:
    """A set of workers, seen from the process that started them."""

    job: Job
    scratch: Scratch
    processes: Sequence[subprocess.Popen[bytes]]

    def wait(self, on_progress: Callable[[int, int], None]) -> Iterator[Document]:
        """The documents of the runs as they end, up to the first that failed."""
        for run in range(len(self.job.configs)):
            document = self._wait_for(run, on_progress)
            yield document
            if isinstance(document, Failure):
                return
        with contextlib.suppress(subprocess.TimeoutExpired):  # they end by themselves
            for process in self.processes:
                process.wait(_STOP_SECONDS)

    def _wait_for(self, run: int, on_progress: Callable[[int, int], None]) -> Document:
        """The document of the run of this index, once it has ended."""
        config, scratch = self.job.configs[run], self.scratch
        seen, since = scratch.read_progress(), time.monotonic()
        while not scratch.outcome(run).exists():
            time.sleep(_POLL_SECONDS)
            statuses = [process.poll() for process in self.processes]
            if (any(statuses) or None not in statuses) and not scratch.outcome(run).exists():
                return self._fail(run, self._tell(config, statuses))
            now = scratch.read_progress()
            if now != seen:
                seen, since = now, time.monotonic()
                if now is not None and now[0] == run:
                    on_progress(*now[1:])
            elif time.monotonic() - since > config.timeout:
                message = (
                    f"the workers reported nothing for {config.timeout:.0f} s and were stopped. {scratch.read_tail()}"
                )
                return self._fail(run, message.strip())
        return decode(scratch.outcome(run).read_bytes())

    def _fail(self, run: int, error: str) -> Failure:
        return failure_of(self.job.configs[run], error, self.job.command)

    def _tell(self, config: RunConfig, statuses: Sequence[int | None]) -> str:
        """The reason why the workers ended before the run did."""
        if (killed := find_killed(statuses)) is not None:
            rank, name = killed
            hint = "; was there enough memory?" if name == "SIGKILL" else ""
            return f"{config.method}: rank {rank} of {config.workers} was ended by {name}{hint}"
        tail, status = self.scratch.read_tail(), next((status for status in statuses if status), 0)
        return f"{config.method}: the workers ended with status {status}" + (f":\n{tail}" if tail else "")


def _environment_of(config: RunConfig, network: ShapedNetwork | None) -> dict[str, str]:
    """The environment of all workers: as by torchrun, where rank 0 is, and how many they are."""
    there, local = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}, config.workers
    if network is not None:
        local = config.workers // network.machines  # others are behind a link
        there = {"MASTER_ADDR": address(0), "MASTER_PORT": str(PORT), "GLOO_SOCKET_IFNAME": INTERFACE}
    ours = {name: value for name, value in environment().items() if not name.startswith("TORCHELASTIC_")}
    here = os.environ.get("PYTHONPATH")
    return {
        **ours, **there, "WORLD_SIZE": str(config.workers), "LOCAL_WORLD_SIZE": str(config.workers),
        "GRACE_LOCAL_WORLD_SIZE": str(local), "OMP_NUM_THREADS": str(config.threads),
        "PYTHONPATH": os.getcwd() if not here else f"{here}{os.pathsep}{os.getcwd()}",  # for module:Class tasks
    }  # fmt: skip
