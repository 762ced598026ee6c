"""Progress of runs: a bar with the time left on a terminal, a plain line for each run elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from grace.bench.compare import Outcome


class Reporter:
    """Context manager whose methods are the callbacks of ``launch`` and ``compare``.

    Args:
        console: where to; usually stderr, so that stdout is left to results.
        runs: how many runs there will be.
        bar: whether to draw; False writes lines only.
    """

    def __init__(self, console: Console, runs: int, *, bar: bool):
        self.console, self.runs, self.done = console, runs, 0
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._method, self._since = "", 0.0
        if bar and console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
                TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console, transient=True,
            )  # fmt: skip

    def __enter__(self) -> Reporter:
        if self._bar is not None:
            self._task = self._bar.add_task("", total=self.runs)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def started(self, method: str) -> None:
        """A run begins."""
        self._method, self._since = method, time.monotonic()
        self._draw(0.0, "starting")

    def progressed(self, done: int, steps: int) -> None:
        """So many steps of this run are done."""
        self._draw(done / steps, f"step {done}/{steps}")

    def ended(self, outcome: Outcome) -> None:
        """A run has ended, one way or the other."""
        self.done += 1
        self._draw(0.0, "")
        seconds = time.monotonic() - self._since
        if outcome.result is None:
            what = "failed"
        else:
            final = outcome.result.final
            what = f"{outcome.result.metric} " + ("diverged" if final is None else f"{final:.4f}")
        self.console.print(
            f"{self.done}/{self.runs} {outcome.method}: {what} ({seconds:.0f} s)", highlight=False, markup=False
        )

    def _draw(self, fraction: float, doing: str) -> None:
        if self._bar is not None and self._task is not None:
            label = f"[bold]{self._method}[/] ({min(self.done + 1, self.runs)} of {self.runs}) {doing}"
            self._bar.update(self._task, completed=self.done + fraction, description=label)


class Checklist:
    """Context manager that shows which of several checks runs: a bar on a terminal, nothing elsewhere."""

    def __init__(self, console: Console):
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f} of {task.total:.0f}"),
            TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task("")

    def __enter__(self) -> Checklist:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def began(self, done: int, checks: int, name: str) -> None:
        """The next check begins."""
        self._bar.update(self._task, completed=done, total=checks, description=name)
