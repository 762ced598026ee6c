"""Progress of long work: a bar with the time left on a terminal, a plain line for each run elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from grace.registry import short
from grace_bench.extras import TORCH
from grace_bench.runs.config import RunConfig
from grace_bench.runs.results import Failure
from grace_bench.workers.sweep import RunOutcome

Own = TypeVar("Own", bound="Bar")


class Bar:
    """Context manager with a bar on a terminal, and nothing elsewhere.

    Args:
        console: where to; usually stderr, so that stdout is left to results.
        shown: whether to draw at all.
    """

    def __init__(self, console: Console, *, shown: bool = True):
        self.console = console
        self._bar = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"),
            console=console, transient=True, disable=not (shown and console.is_terminal),
        )  # fmt: skip
        self._task = self._bar.add_task("", note="")

    def __enter__(self: Own) -> Own:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def draw(self, done: float, total: float, label: str, note: str) -> None:
        """Shows how much of the total is done, with a label before the bar and a note after it."""
        self._bar.update(self._task, completed=done, total=total, description=label, note=note)


class SweepReporter(Bar):
    """Reports a sweep, see :class:`grace_bench.workers.sweep.Watcher`; ``runs``: how many, finished ones included."""

    def __init__(self, console: Console, runs: int, *, bar: bool):
        super().__init__(console, shown=bar)
        self.runs, self.done = runs, 0
        self._earlier, self._label, self._began = 0, "", time.monotonic()

    def begin_run(self, config: RunConfig) -> None:
        """A run begins."""
        self._label = escape(f"{config.task} {short(config.method)} x{config.workers} {config.network}")
        self._draw(0.0, "starting")

    def show_steps(self, done: int, steps: int) -> None:
        """So many steps of this run are done."""
        self._draw(done / steps, f"step {done}/{steps}")

    def end_run(self, run: RunOutcome) -> None:
        """A run has ended, one way or the other, or had ended before."""
        self.done += 1
        self._earlier += run.earlier
        self._draw(0.0, "")
        line = f"{self.done}/{self.runs} {name_run(run.config)}: {_tell(run)}"
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def left(self, fraction: float = 0.0) -> str:
        """The time left at the pace so far: ``12 min left``; empty before anything is known."""
        ran = self.done - self._earlier + fraction
        if ran < 0.05 or self.done >= self.runs:
            return ""
        return f"{duration((time.monotonic() - self._began) / ran * (self.runs - self.done - fraction))} left"

    def _draw(self, fraction: float, doing: str) -> None:
        label = f"[bold]{self._label}[/] ({min(self.done + 1, self.runs)} of {self.runs}) {doing}"
        self.draw(self.done + fraction, max(1, self.runs), label, self.left(fraction))


def name_run(config: RunConfig) -> str:
    """Name of a run, in a line."""
    where = "" if config.toolkit == TORCH else f" on {config.toolkit}"
    run = f"{config.task} {short(config.method)}{where}, {config.workers} workers, {config.network}, seed {config.seed}"
    return run + (f", round {config.round + 1}" if config.round else "")


def _tell(run: RunOutcome) -> str:
    document = run.document
    if isinstance(document, Failure):
        return f"failed: {document.error.strip().splitlines()[-1]}"
    took = "(finished earlier)" if run.earlier else f"({run.seconds:.0f} s)"
    quality = ""
    if document.measured:
        quality = f"{document.metric} " + ("diverged, " if document.final is None else f"{document.final:.4f}, ")
    elif document.curve:
        quality = "quality not measured, "
    return f"{quality}step {document.time.step_ms.median:.1f} ms {took}"


def duration(seconds: float) -> str:
    """Seconds for people: ``45 s``, ``12 min``, ``2 h 5 min``."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
