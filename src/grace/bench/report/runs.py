"""Sweeps on a terminal: progress with the time left, and tables."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from grace.bench.config import RunConfig
from grace.bench.report.tables import amount, number, share
from grace.bench.results import Document, Result
from grace.bench.sweep import Ended


class SweepReporter:
    """Context manager whose methods are the callbacks of :func:`grace.bench.sweep.sweep`.

    Args:
        console: where to; usually stderr, so that stdout is left to results.
        runs: how many runs there are, finished ones included.
        bar: whether to draw; False writes lines only.
    """

    def __init__(self, console: Console, runs: int, *, bar: bool):
        self.console, self.runs, self.done = console, runs, 0
        self._earlier, self._label, self._began = 0, "", time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        if bar and console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[left]}"),
                console=console,
                transient=True,
            )

    def __enter__(self) -> SweepReporter:
        if self._bar is not None:
            self._task = self._bar.add_task("", total=max(1, self.runs), left="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def started(self, config: RunConfig) -> None:
        """A run begins."""
        self._label = f"{config.task} {config.method} x{config.workers} {config.network}"
        self._draw(0.0, "starting")

    def progressed(self, done: int, steps: int) -> None:
        """So many steps of this run are done."""
        self._draw(done / steps, f"step {done}/{steps}")

    def ended(self, run: Ended) -> None:
        """A run has ended, one way or the other, or had ended before."""
        self.done += 1
        self._earlier += run.earlier
        self._draw(0.0, "")
        self.console.print(
            f"{self.done}/{self.runs} {named(run)}: {_told(run)}", highlight=False, markup=False, soft_wrap=True
        )

    def left(self, fraction: float = 0.0) -> str:
        """The time left, if runs go on as they went: ``12 min left``; empty before anything is known."""
        ran = self.done - self._earlier + fraction
        if ran < 0.05 or self.done >= self.runs:
            return ""
        return f"{duration((time.monotonic() - self._began) / ran * (self.runs - self.done - fraction))} left"

    def _draw(self, fraction: float, doing: str) -> None:
        if self._bar is not None and self._task is not None:
            label = f"[bold]{self._label}[/] ({min(self.done + 1, self.runs)} of {self.runs}) {doing}"
            self._bar.update(self._task, completed=self.done + fraction, description=label, left=self.left(fraction))


def named(run: Ended) -> str:
    """Which run it is, in a line."""
    config = run.config
    return f"{config.task} {config.method}, {config.workers} workers, {config.network}, seed {config.seed}"


def _told(run: Ended) -> str:
    document = run.document
    if not isinstance(document, Result):
        return f"failed: {document.error.strip().splitlines()[-1]}"
    quality = "" if document.final is None else f"{document.metric} {document.final:.4f}, "
    took = "(finished earlier)" if run.earlier else f"({run.seconds:.0f} s)"
    return f"{quality}step {document.time.step_ms.median:.1f} ms {took}"


def duration(seconds: float) -> str:
    """Seconds for people: ``45 s``, ``12 min``, ``2 h 5 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _table(*headings: str, left: int = 1) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index < left else "right")
    return table


def sweep_table(documents: Sequence[Document]) -> RenderableType:
    """One line for each run: what it was, its quality, its times, and what the link model had predicted."""
    table = _table(
        "task", "workers", "link", "method", "quality", "sent / step", "vs fp32", "compute ms", "codec ms", "exposed ms",
        "step ms", "predicted", "error", left=4,
    )  # fmt: skip
    for one in documents:
        name = (one.task, str(one.workers), one.link.name)
        if not isinstance(one, Result):
            table.add_row(*name, Text(one.method, style="red"), Text("failed", style="red"))
            continue
        times, traffic, prediction = one.time, one.traffic, one.prediction
        error = None if prediction is None else prediction.relative_error
        table.add_row(
            *name, Text(one.method, style="dim" if one.kind == "baseline" else ""), number(one.final, 4),
            amount(traffic.sent_bytes_per_step), share(traffic.relative_to_fp32), number(times.compute_ms),
            number(times.codec_ms), number(times.exposed_ms), number(times.step_ms.median),
            number(None if prediction is None else prediction.step_ms), "-" if error is None else f"{100 * error:+.0f} %",
        )  # fmt: skip
    return table


def link_table(rows: Sequence[dict[str, Any]]) -> RenderableType:
    """Speeds asked for and measured."""
    table = _table("link", "asked Mbit/s", "measured Mbit/s", "difference")
    for row in rows:
        asked, found = row["asked_bits_per_second"] / 1e6, row["measured_bits_per_second"] / 1e6
        table.add_row(row["link"], f"{asked:,.0f}", f"{found:,.1f}", f"{100 * row['relative_error']:+.1f} %")
    return table


def prediction_table(rows: Sequence[dict[str, Any]]) -> RenderableType:
    """What the link model predicts."""
    table = _table("task", "method", "workers", "link", "predicted step ms", "measured", left=2)
    for row in rows:
        measured = row["measured"]
        found = f"{measured['step_ms']:.1f} ({measured['workers']} workers, {measured['link']})"
        table.add_row(row["task"], row["method"], str(row["workers"]), row["link"], f"{row['step_ms']:.1f}", found)
    return table
