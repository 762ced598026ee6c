"""Starts the workers of runs on this machine, under torchrun, and over a link if one is asked for.

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

from grace_bench.network.namespaces import Network, environment
from grace_bench.runs.config import RunConfig
from grace_bench.runs.record import failure_of
from grace_bench.runs.results import Document, Failure, decode, encode
from grace_bench.workers.agent import kill_tree
from grace_bench.workers.scratch import Scratch
from grace_bench.workers.worker import Job

_POLL_SECONDS = 0.1
_STOP_SECONDS = 9.0  # how long torchrun may take to end: a little more than its own deadline for the workers


class Launcher(Protocol):
    """What trains configurations one after the other, as :func:`launch` does on this machine."""

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
    if any(one != shared[0] for one in shared):
        raise ValueError("runs that share their workers need the same workers, link, threads and toolkit")
    shaped = Network(first.network, first.workers, first.machines) if first.network.shaped else contextlib.nullcontext()
    begin = 0
    with terminable(), shaped as network:
        while begin < len(configs):
            with _start(Job(list(configs[begin:]), command), network) as workers:
                for document in workers.wait(on_progress):
                    yield document
                    begin += 1


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP end this process as Ctrl-C does: through its ``finally`` clauses."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():  # Python delivers signals only there
        yield
        return
    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _start(job: Job, network: Network | None) -> Iterator[_Workers]:
    """Workers that go through some runs; none outlives the block."""
    with tempfile.TemporaryDirectory(prefix="grace-", ignore_cleanup_errors=True) as folder:
        scratch = Scratch(Path(folder))
        scratch.job.write_text(encode(job))
        for name, path in ({} if network is None else network.paths()).items():
            (scratch.folder / f"net.{name}").symlink_to(path)
        os.mkfifo(scratch.lifeline)
        lifeline = os.open(scratch.lifeline, os.O_RDWR)
        try:
            with scratch.log.open("wb") as log:
                arguments = _arguments_of(job.configs[0], scratch, network)
                agent = subprocess.Popen(
                    [sys.executable, "-m", "grace_bench.workers.agent", folder, *arguments],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment_of(job.configs[0]),
                    start_new_session=True,  # so that Ctrl-C comes here first, and workers end in order
                )  # fmt: skip
            try:
                yield _Workers(job, scratch, agent)
            finally:
                _stop(agent)
        finally:
            os.close(lifeline)


def _stop(agent: subprocess.Popen[bytes]) -> None:
    """Ends torchrun and its workers: politely, then by force."""
    agent.terminate()
    try:
        agent.wait(_STOP_SECONDS)
    except BaseException as error:
        kill_tree(agent.pid)
        agent.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise


@dataclasses.dataclass(frozen=True, slots=True)
class _Workers:
    """One set of workers, seen from the process that started them."""

    job: Job
    scratch: Scratch
    agent: subprocess.Popen[bytes]

    def wait(self, on_progress: Callable[[int, int], None]) -> Iterator[Document]:
        """The documents of the runs as they end, up to the first that failed."""
        for run in range(len(self.job.configs)):
            document = self._wait_for(run, on_progress)
            yield document
            if isinstance(document, Failure):
                return
        with contextlib.suppress(subprocess.TimeoutExpired):  # they end by themselves
            self.agent.wait(_STOP_SECONDS)

    def _wait_for(self, run: int, on_progress: Callable[[int, int], None]) -> Document:
        """The document of the run of this index, once it has ended."""
        config, scratch = self.job.configs[run], self.scratch
        seen, since = scratch.read_progress(), time.monotonic()
        while not scratch.outcome(run).exists():
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self.agent.wait(_POLL_SECONDS)
                if not scratch.outcome(run).exists():
                    return self._fail(run, self._tell(config, status))
            now = scratch.read_progress()
            if now != seen:
                seen, since = now, time.monotonic()
                if now is not None and now[0] == run:
                    on_progress(*now[1:])
            elif time.monotonic() - since > config.timeout:
                said = (
                    f"the workers reported nothing for {config.timeout:.0f} s and were stopped. {scratch.read_tail()}"
                )
                return self._fail(run, said.strip())
        return decode(scratch.outcome(run).read_bytes())

    def _fail(self, run: int, error: str) -> Failure:
        return failure_of(self.job.configs[run], error, self.job.command)

    def _tell(self, config: RunConfig, status: int) -> str:
        """Why the workers ended before the run did."""
        if self.scratch.killed.exists():
            rank, name = self.scratch.killed.read_text().split()
            hint = "; was there enough memory?" if name == "SIGKILL" else ""
            return f"{config.method}: rank {rank} of {config.workers} was ended by {name}{hint}"
        tail = self.scratch.read_tail()
        return f"{config.method}: the workers ended with status {status}" + (f":\n{tail}" if tail else "")


def _arguments_of(config: RunConfig, scratch: Scratch, network: Network | None) -> list[str]:
    """What torchrun is told."""
    common = ["--standalone", "--max-restarts=0", f"--nproc-per-node={config.workers}"]
    logs = [f"--log-dir={scratch.logs}", "--redirects=3"]
    worker = ["-m", "grace_bench.workers.worker", str(scratch.folder)]
    if network is None:
        return [*common, *logs, *worker]
    # torchrun gives every worker the same command: a shell finds the namespace of its rank
    nets = scratch.folder / "net"
    user = f"--user={nets}.user --preserve-credentials" if "user" in network.paths() else ""
    enter = f'exec nsenter {user} --net={nets}.$RANK -- "$0" "$@"'
    return [*common, *logs, "--no-python", "sh", "-c", enter, sys.executable, "-u", *worker]


def _environment_of(config: RunConfig) -> dict[str, str]:
    here = os.environ.get("PYTHONPATH")
    return {
        **environment(),
        "OMP_NUM_THREADS": str(config.threads),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # the agent's own store is not one for workers, see the transport
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5",
        "PYTHONPATH": os.getcwd() if not here else f"{here}{os.pathsep}{os.getcwd()}",  # for module:Class tasks
    }
