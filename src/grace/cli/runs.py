"""The commands ``grace train`` and ``grace compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console

from grace.bench.compare import Outcome, compare, document, plain, succeeded, with_baseline
from grace.bench.config import RunConfig
from grace.bench.extras import need
from grace.bench.launch import launch
from grace.bench.report import tables
from grace.bench.report.progress import Reporter
from grace.bench.tasks import find_task
from grace.cli.options import Json, folder
from grace.cli.output import show, write_json
from grace.run.groups import Granularity

TaskName = Annotated[str, typer.Option("--task", help="digits, or a task of your own: module:Class.")]
Workers = Annotated[int, typer.Option("--workers", "-w", help="Worker processes on this machine.")]
Steps = Annotated[int | None, typer.Option("--steps", help="Length in steps; by default the task's.")]
Epochs = Annotated[float | None, typer.Option("--epochs", help="Length in epochs instead.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of the model, the data's order and the method.")]
Rate = Annotated[float | None, typer.Option("--lr", help="Peak learning rate, instead of what suits task and method.")]
Data = Annotated[str | None, typer.Option("--data", help="Directory of the official files; embedded data without.")]
Grains = Annotated[
    str, typer.Option("--granularity", help="What is compressed as one tensor: parameter, bucket or model.")
]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds without progress after which a run is stopped.")]


def train(
    method: Annotated[str, typer.Option("--method", "-m", help="The method, such as topk:ratio=0.01.")],
    task: TaskName = "digits",
    workers: Workers = 4,
    steps: Steps = None,
    epochs: Epochs = None,
    seed: Seed = 0,
    granularity: Grains = "parameter",
    lr: Rate = None,
    data: Data = None,
    timeout: Timeout = 300.0,
    out: Annotated[Path | None, typer.Option("--out", callback=folder, help="Folder for the result (JSON).")] = None,
    as_json: Json = False,
) -> None:
    """Train a task with one method, in real worker processes.

    Example: [bold]grace train --task digits --method topk:ratio=0.01 --workers 4[/]
    """
    config = RunConfig(
        task, method, workers, steps, epochs, seed, cast("Granularity", granularity), lr, data=data, timeout=timeout
    )
    find_task(task)  # an unknown task is told before any process starts
    with Reporter(Console(stderr=True), 1, bar=not as_json) as reporter:
        reporter.started(method)
        result = launch(config, out=out, on_progress=reporter.progressed)
        reporter.ended(Outcome(method, result=result))
    if as_json:
        write_json(result)
    else:
        show(tables.comparison([Outcome(method, result=result)]))


def compare_(
    methods: Annotated[str, typer.Option("--methods", "-m", help="Methods with commas between; none is always added.")],
    out: Annotated[Path, typer.Option("--out", callback=folder, help="Folder for results, tables and figures.")],
    task: TaskName = "digits",
    workers: Workers = 4,
    steps: Steps = None,
    epochs: Epochs = None,
    seed: Seed = 0,
    granularity: Grains = "parameter",
    lr: Rate = None,
    data: Data = None,
    timeout: Timeout = 300.0,
    as_json: Json = False,
) -> None:
    """Compare methods on a task: a table, CSV and JSON, and figures.

    A method that cannot use the task's learning rate or momentum gets its own, and the table says so.

    Example: [bold]grace compare --task digits --methods bf16,topk:ratio=0.01,powersgd:rank=2 --workers 4 --out demo[/]
    """
    chosen = with_baseline(methods)
    config = RunConfig(
        task, "none", workers, steps, epochs, seed, cast("Granularity", granularity), lr, data=data, timeout=timeout
    )
    find_task(task)
    need("matplotlib", extra="bench")  # now, not after minutes of training
    with Reporter(Console(stderr=True), len(chosen), bar=not as_json) as reporter:
        outcomes = compare(
            config, chosen, out, on_start=reporter.started, on_progress=reporter.progressed, on_end=reporter.ended
        )
    results = succeeded(outcomes)
    if results:
        from grace.bench.report.figures import draw

        draw([plain(one) for one in results], out)
    if as_json:
        write_json(document(outcomes))
    else:
        show(tables.comparison(outcomes))
        written = "results.json, runs.csv, curves.csv" + (", comparison.png, comparison.svg" if results else "")
        typer.echo(f"In {out}: {written}", err=True)
    if len(results) < len(outcomes):
        failed = ", ".join(outcome.method for outcome in outcomes if outcome.result is None)
        typer.echo(f"error: {len(outcomes) - len(results)} of {len(outcomes)} methods failed: {failed}", err=True)
        raise typer.Exit(1)
