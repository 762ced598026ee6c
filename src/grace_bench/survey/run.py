"""Runs a plan of the survey: one file for each run, written whole or not at all, so that any interruption costs one run."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from grace.errors import GraceError
from grace_bench.files import write_atomically
from grace_bench.runs.results import DocumentError, encode
from grace_bench.survey.estimate import Have
from grace_bench.survey.plan import Planned
from grace_bench.survey.row import SurveyRow, decode_row, run_file
from grace_bench.survey.together import Progress
from grace_bench.survey.train import train


@dataclass(frozen=True, slots=True)
class Done:
    """A run that has ended. ``row``: None where it failed with ``error``. ``seconds``: it took; 0: in an earlier call."""

    run: Planned
    row: SurveyRow | None
    error: str = ""
    seconds: float = 0.0


def find_row(run: Planned, out: Path) -> SurveyRow | None:
    """The row of a run that has one.

    Raises:
        DocumentError: the file is there, and is no row; nothing is overwritten.
    """
    file = out / "runs" / run_file(run.protocol, run.config)
    try:
        return decode_row(file.read_bytes())
    except FileNotFoundError:
        return None
    except DocumentError as error:
        raise DocumentError(f"{file}: {error}; move it away, or take another --out") from error


def run_all(
    runs: Sequence[Planned],
    out: Path,
    told: Callable[[Done], None],
    jobs: int = 1,
    progress: Progress = lambda done, steps: None,
    known: Iterable[SurveyRow] = (),
) -> list[SurveyRow]:
    """The rows of all runs, in their order: those of earlier calls are read, those of ``known`` are taken, the others run,
    ``jobs`` side by side. Those whose learning rate others choose begin when the rest have ended.

    Args:
        runs: in the order in which they begin.
        out: the folder; ``runs/*.json`` in it.
        told: is told of every run as it ends. One that fails is told and runs again in a later call; the others go on.
        jobs: processes, with one thread each, at this process's priority; 1: this process itself.
        progress: called with (steps done, steps in all) of a run in this process.
        known: rows of an archive. A run that is among them gets no file in ``out``.
    """
    rows: dict[Planned, SurveyRow] = {}
    have = Have(known)

    def find(run: Planned) -> SurveyRow | None:
        return find_row(run, out) or have.row(run)

    def work(now: dict[Planned, Planned]) -> None:  # what runs, and as which run of the plan
        for run, planned in now.items():
            if (row := find(run)) is not None:
                rows[planned] = row
                told(Done(run, row))
        waiting = [run for run, planned in now.items() if planned not in rows]
        with _side_by_side(waiting, out, jobs, progress) as ended:
            for done in ended:
                if done.row is not None:
                    rows[now[done.run]] = done.row
                told(done)

    work({run: run for run in runs if not run.grid})
    ready: dict[Planned, Planned] = {}
    for run in (run for run in runs if run.grid):
        trial_rows = [rows.get(trial) or find(trial) for trial in run.trials]
        known = [row for row in trial_rows if row is not None]
        if len(known) == len(trial_rows):
            ready[run.settle(known)] = run
        else:
            told(
                Done(
                    run,
                    None,
                    f"{len(trial_rows) - len(known)} of its {len(trial_rows)} trials of a learning rate have no result",
                )
            )
    work(ready)
    return [rows[run] for run in runs if run in rows]


def run_one(run: Planned, out: Path, progress: Progress = lambda done, steps: None) -> Done:
    """Runs it and writes its row."""
    began = time.monotonic()
    try:
        row = train(run.config, run.protocol, progress)
    except GraceError as error:
        return Done(run, None, str(error), time.monotonic() - began)
    write_atomically(out / "runs" / run_file(run.protocol, run.config), encode(row))
    return Done(run, row, seconds=time.monotonic() - began)


def yield_to_others() -> None:
    """Lets this process have only what no other process wants."""
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError, AttributeError):
        os.nice(19)


@contextlib.contextmanager
def _side_by_side(runs: Sequence[Planned], out: Path, jobs: int, progress: Progress) -> Iterator[Iterator[Done]]:
    if jobs == 1 or len(runs) < 2:
        yield (run_one(run, out, progress) for run in runs)
        return
    with multiprocessing.get_context("spawn").Pool(min(jobs, len(runs)), _begin) as pool:
        yield pool.imap_unordered(_run_in_pool, [(run, out) for run in runs])


def _begin() -> None:
    """A process of the pool: at its parent's priority, and it does not outlive the parent, however that ends. A Ctrl-C is the
    parent's, which ends it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with, args=(multiprocessing.parent_process(),), daemon=True).start()


def _leave_with(parent: BaseProcess | None) -> None:
    assert parent is not None
    parent.join()
    os._exit(1)  # a run is written whole or not at all


def _run_in_pool(given: tuple[Planned, Path]) -> Done:
    return run_one(*given)
