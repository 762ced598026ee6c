"""Sweeps: tasks x methods x workers x links x seeds, one result file for each run.

A run that has a file with status "ok" is finished: a sweep that was stopped goes on with the others, and one that failed
is tried again. Runs with the same workers and link share their worker processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grace.bench.baselines import BASELINES, NO_COMMUNICATION
from grace.bench.config import RunConfig
from grace.bench.launch import Launcher, RunError, launch_all
from grace.bench.network.namespaces import LinkError, why_not
from grace.bench.record import failure_of, file_name
from grace.bench.results import Document, DocumentError, Result, decode, encode
from grace.bench.scratch import write_atomically
from grace.bench.table import write_tables
from grace.bench.tasks import TASKS, find_task
from grace.errors import ConfigurationError, GraceError

_CGROUP = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current"))


class SpaceError(GraceError, OSError):
    """A result that cannot be written."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a sweep is.

    Attributes:
        tasks, methods, workers, links, seeds: every combination is a run. baselines: run beside the methods.
        common: what all runs share: the fields of :class:`grace.bench.config.RunConfig` that are not named above.
    """

    tasks: Sequence[str]
    methods: Sequence[str]
    workers: Sequence[int] = (4,)
    links: Sequence[str] = ("none",)
    seeds: Sequence[int] = (0,)
    baselines: Sequence[str] = BASELINES
    common: dict[str, Any] = dataclasses.field(default_factory=dict)

    def runs(self) -> list[RunConfig]:
        """All runs, those that can share workers side by side; baselines first. The limit is measured once, not per seed.

        Raises:
            ConfigurationError: one of them cannot be.
        """
        found: dict[RunConfig, None] = {}
        for workers in self.workers:
            for link in self.links:
                common = self.common if link != "none" else {**self.common, "latency": 0.0}
                for task in self.tasks:
                    for method in (*self.baselines, *self.methods):
                        seeds = self.seeds[:1] if method == NO_COMMUNICATION else self.seeds
                        for seed in seeds:
                            found[
                                RunConfig(task=task, method=method, workers=workers, link=link, seed=seed, **common)
                            ] = None
        return list(found)


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that has ended, now or in an earlier sweep."""

    config: RunConfig
    document: Document
    file: Path
    seconds: float = 0.0
    earlier: bool = False

    @property
    def ok(self) -> bool:
        """Whether it has a result."""
        return isinstance(self.document, Result)


def finished(config: RunConfig, out: Path) -> Ended | None:
    """The run as an earlier sweep left it; None if it has to run."""
    file = out / "runs" / file_name(config)
    with contextlib.suppress(OSError, DocumentError):
        document = decode(file.read_bytes())
        if isinstance(document, Result):
            return Ended(config, document, file, earlier=True)
    return None


def check(configs: Sequence[RunConfig], out: Path) -> None:
    """What can be known before anything starts.

    Raises:
        UnknownNameError: an unknown task.
        LinkError: a link that this machine cannot make.
        ConfigurationError: more workers than memory allows.
        SpaceError: ``out`` cannot be written to.
    """
    for task in dict.fromkeys(config.task for config in configs):
        find_task(task)
    for link in dict.fromkeys(config.network for config in configs if config.network.shaped):
        if reason := why_not(link):
            raise LinkError(reason)
    check_memory(configs)
    with _writing(out):
        (out / "runs").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out / "runs") as file:
            file.write(bytes(4096))
            file.flush()


def check_memory(configs: Iterable[RunConfig], available: int | None = None) -> None:
    """Whether the workers of each run fit into memory, as far as their tasks can tell.

    Raises:
        ConfigurationError: they do not; says how many would.
    """
    free = available_bytes() if available is None else available
    needs: dict[tuple[str, int | None, int], int] = {}
    for config in configs:
        key = (config.task, config.batch, config.workers)
        if key not in needs:
            task = find_task(config.task)
            task.workers = config.workers
            if config.batch is not None:
                task.batch = config.batch
            # the suite's way tries out the loss, here and not in a worker: a user's own task must ask for that
            known = config.task in TASKS or "worker_bytes" in vars(type(task))
            needs[key] = task.worker_bytes() if known else 0
        need = needs[key]
        if need and need * config.workers > free:
            fit = free // need
            raise ConfigurationError(
                f"{config.workers} workers of {config.task} need at least {config.workers * need / 1e9:.1f} GB, and "
                f"{free / 1e9:.1f} GB are free: "
                + (f"at most {fit} workers fit" if fit else "not even one worker fits")
            )


def available_bytes() -> int:
    """Memory that new processes may take: of the machine, and of the control group where it sets a limit."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = 1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])
    with contextlib.suppress(OSError, ValueError):  # "max" is no number: no limit
        limit, used = (int(path.read_text()) for path in _CGROUP)
        free = min(free, limit - used)
    return free


def sweep(
    configs: Sequence[RunConfig],
    out: Path,
    *,
    on_start: Callable[[RunConfig], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    on_end: Callable[[Ended], None] | None = None,
    command: list[str] | None = None,
    launcher: Launcher = launch_all,
) -> list[Ended]:
    """Runs what is not finished, and returns all runs in their order. Writes ``runs/*.json``, each as it ends, and
    ``runs.csv`` (and ``runs.parquet``, where pyarrow is installed).

    A run that fails is recorded with its error; the others go on. ``launcher`` starts the workers.

    Raises:
        LinkError: a link cannot be made.
        SpaceError: a result cannot be written; what was finished is kept.
    """
    ended: dict[RunConfig, Ended] = {}
    for config in configs:
        if (found := finished(config, out)) is not None:
            ended[config] = found
            if on_end is not None:
                on_end(found)
    for batch in _batches([config for config in configs if config not in ended]):
        started: list[int] = []

        def start(index: int, batch: Sequence[RunConfig] = batch, started: list[int] = started) -> None:
            if index not in started and index < len(batch):
                started.append(index)
                if on_start is not None:
                    on_start(batch[index])

        def progress(index: int, done: int, steps: int, start: Callable[[int], None] = start) -> None:
            start(index)
            if on_progress is not None:
                on_progress(done, steps)

        start(0)
        since = time.monotonic()
        with contextlib.closing(launcher(batch, on_progress=progress, command=command)) as outcomes:
            # outcomes first: so they are asked once more, and their workers end by themselves
            for index, (outcome, config) in enumerate(zip(outcomes, batch, strict=True)):
                document = failure_of(config, str(outcome), command or []) if isinstance(outcome, RunError) else outcome
                file = out / "runs" / file_name(config)
                with _writing(out):
                    write_atomically(file, encode(document))
                    ended[config] = Ended(config, document, file, time.monotonic() - since)
                    write_tables([one.document for one in ended.values()], out)
                if on_end is not None:
                    on_end(ended[config])
                since = time.monotonic()
                start(index + 1)
    with _writing(out):
        write_tables([ended[config].document for config in configs], out)
    return [ended[config] for config in configs]


def _batches(configs: Sequence[RunConfig]) -> Iterator[list[RunConfig]]:
    """Runs that can share their workers."""
    batches: dict[Any, list[RunConfig]] = {}
    for config in configs:
        batches.setdefault((config.workers, config.network, config.threads), []).append(config)
    yield from batches.values()


@contextlib.contextmanager
def _writing(out: Path) -> Iterator[None]:
    """What the system says of the folder, in words."""
    try:
        yield
    except OSError as error:
        hint = (
            "; free some space and run the same command again: what is finished is kept"
            if error.errno == errno.ENOSPC
            else ""
        )
        raise SpaceError(f"cannot write into {out}: {error.strerror or error}{hint}") from error
