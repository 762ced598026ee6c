"""Sweeps: one result file for each run, and tables of all.

A run that has a file with status "ok" is finished: a sweep that was stopped continues with the others, and a run that
failed is tried again. Runs with the same workers and link share their worker processes.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from grace.errors import GraceError
from grace_bench.files import write_atomically
from grace_bench.runs.config import RunConfig
from grace_bench.runs.record import file_name
from grace_bench.runs.results import Document, DocumentError, Result, decode, encode
from grace_bench.runs.table import write_tables
from grace_bench.runs.trackers import Tracker
from grace_bench.workers.local import Launcher, launch


class SpaceError(GraceError, OSError):
    """A result that cannot be written."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """A run that has ended, now or in an earlier sweep. ``file``: its document's; None where nothing is written."""

    config: RunConfig
    document: Document
    file: Path | None = None
    seconds: float = 0.0
    earlier: bool = False

    @property
    def ok(self) -> bool:
        """True if it has a result."""
        return isinstance(self.document, Result)


class Watcher(Protocol):
    """A receiver of the progress of a sweep."""

    def begin_run(self, config: RunConfig) -> None:
        """A run begins."""

    def show_steps(self, done: int, steps: int) -> None:
        """``done`` of this run's steps are done."""

    def end_run(self, run: RunOutcome) -> None:
        """A run has ended, well or badly, or had ended before."""


def find_finished(config: RunConfig, out: Path) -> RunOutcome | None:
    """The run as an earlier sweep left it; None if it has to run."""
    file = out / "runs" / file_name(config)
    with contextlib.suppress(OSError, DocumentError):
        document = decode(file.read_bytes())
        if isinstance(document, Result):
            return RunOutcome(config, document, file, earlier=True)
    return None


def sweep(
    configs: Sequence[RunConfig],
    out: Path | None,
    watcher: Watcher,
    *,
    command: list[str],
    launcher: Launcher = launch,
    trackers: Sequence[Tracker] = (),
) -> list[RunOutcome]:
    """Runs what is not finished, and returns all runs in their order. A run that fails is recorded with its error; the
    others go on.

    Args:
        configs: the runs.
        out: where to write ``runs/*.json``, each as it ends, and the tables of all; None: nowhere, and every run runs.
        watcher: is told what happens.
        command: what the user typed, for the record.
        launcher: starts the workers.
        trackers: are told of each new result.

    Raises:
        LinkError: a link cannot be made.
        SpaceError: a result cannot be written; what was finished is kept.
    """
    ended: dict[RunConfig, RunOutcome] = {}
    for config in configs:
        if out is not None and (finished := find_finished(config, out)) is not None:
            ended[config] = finished
            watcher.end_run(finished)
    for batch in _batch([config for config in configs if config not in ended]):
        watcher.begin_run(batch[0])
        since = time.monotonic()
        with contextlib.closing(launcher(batch, on_progress=watcher.show_steps, command=command)) as documents:
            # documents come first in zip: so they are asked once more, and their workers end by themselves
            for index, (document, config) in enumerate(zip(documents, batch, strict=True), 1):
                file = None if out is None else out / "runs" / file_name(config)
                ended[config] = RunOutcome(config, document, file, time.monotonic() - since)
                with _explain_write_errors(out):
                    if out is not None and file is not None:
                        write_atomically(file, encode(document))
                        write_tables([run.document for run in ended.values()], out)
                if isinstance(document, Result):
                    for tracker in trackers:
                        tracker.log(Path(file_name(config)).stem, document)
                watcher.end_run(ended[config])
                since = time.monotonic()
                if index < len(batch):
                    watcher.begin_run(batch[index])
    runs = [ended[config] for config in configs]
    if out is not None:
        with _explain_write_errors(out):
            write_tables([run.document for run in runs], out)
    return runs


def _batch(configs: Sequence[RunConfig]) -> list[list[RunConfig]]:
    """Runs that can share their workers."""
    batches: dict[Any, list[RunConfig]] = {}
    for config in configs:
        batches.setdefault((config.workers, config.network, config.threads, config.toolkit), []).append(config)
    return list(batches.values())


@contextlib.contextmanager
def _explain_write_errors(out: Path | None) -> Iterator[None]:
    """Turns what the system says about the folder into a message."""
    try:
        yield
    except OSError as error:
        kept = "free some space and run the same command again: what is finished is kept"
        hint = f"; {kept}" if error.errno == errno.ENOSPC else ""
        raise SpaceError(f"cannot write into {out}: {error.strerror or error}{hint}") from error
