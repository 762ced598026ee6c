"""The command ``grace bench codecs``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_WIDTH = 180  # where there is no terminal
_LINE_SECONDS = 30.0  # there


def codecs(
    methods: Annotated[
        str | None,
        typer.Option("--methods", "-m", help="Methods with commas between; all (default) and goals stand for several."),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option("--sizes", help="Elements, with commas; K is 1,024, M 1,000,000. [4K,256K,1M,6.5M,25M]"),
    ] = None,
    threads: Annotated[str | None, typer.Option("--threads", help="Numbers of threads, with commas. [1,2]")] = None,
    samples: Annotated[int | None, typer.Option("--samples", help="Samples of each case, 3 or more. [9]")] = None,
    limit: Annotated[
        float | None, typer.Option("--limit", help="Seconds of one run; what takes longer is left out. [1]")
    ] = None,
    budget: Annotated[
        float | None, typer.Option("--budget", help="Seconds of all samples of a case; what is slow gets fewer. [0.5]")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Methods with a goal, 4K and 1M elements, one thread.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for codecs.json and figures.")] = None,
    baseline: Annotated[Path | None, typer.Option("--baseline", help="codecs.json of an earlier run.")] = None,
    fail_slower: Annotated[
        float | None,
        typer.Option("--fail-slower", min=0, help="Exit 1 if anything is slower than the baseline by more per cent."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON, and nothing else, to stdout.")] = False,
) -> None:
    """Measure how long compressing and decompressing take, beside torch's y.add_(x), and hold it against the goals.

    Example: [bold]grace bench codecs --quick --out timings[/]
    """
    from grace.bench.codecs.baseline import compare, read
    from grace.bench.codecs.plan import Plan
    from grace.bench.codecs.run import measure
    from grace.bench.codecs.table import view
    from grace.bench.extras import need
    from grace.bench.launch import terminable
    from grace.bench.scratch import write_atomically

    if fail_slower is not None and baseline is None:
        raise typer.BadParameter("--fail-slower needs a --baseline to compare with")
    plan = Plan.of(methods, sizes, threads, samples, limit=limit, budget=budget, quick=quick)
    then = read(baseline) if baseline is not None else None  # now, not after minutes
    if out is not None:
        need("matplotlib", extra="bench")
        from grace.bench.codecs.figure import draw
    typer.echo(f"measuring {len(plan.methods)} methods: about {_duration(plan.seconds())}", err=True)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(), console=Console(stderr=True),
        transient=True, disable=not sys.stderr.isatty(), speed_estimate_period=600.0,
    )  # fmt: skip
    document: dict[str, Any] = {}
    stopped: KeyboardInterrupt | SystemExit | None = None

    def keep(measured: dict[str, Any]) -> None:
        document.update(measured)
        if out is not None:
            write_atomically(out / "codecs.json", json.dumps({**document, "baseline": None}, allow_nan=False) + "\n")

    task, told = bar.add_task("preparing"), _lines()

    def shown(done: float, total: float, what: str) -> None:
        bar.update(task, completed=done, total=total, description=what)

    try:
        with terminable(), bar:
            done = measure(
                plan,
                command=["grace", *sys.argv[1:]],
                progress=told if bar.disable else shown,
                keep=keep,
            )
            document.update(done)
    except (KeyboardInterrupt, SystemExit) as stop:
        stopped = stop
        if not document:  # nothing was measured
            raise
    found = compare(document, then) if then is not None else None
    document["baseline"] = None if found is None else {"file": str(baseline), **found.document()}
    text = json.dumps(document, indent=1, allow_nan=False)
    written: list[str] = []
    if out is not None:
        write_atomically(out / "codecs.json", text + "\n")
        written = ["codecs.json", *(path.name for path in (draw(document, out) if stopped is None else ()))]
    if as_json:
        typer.echo(text)
    else:
        console = Console()
        Console(width=None if console.is_terminal else _WIDTH, highlight=False).print(view(document, found))
        if written:
            typer.echo(f"In {out}: {', '.join(written)}", err=True)
    if stopped is not None:
        typer.echo(f"error: stopped after {_duration(document['seconds'])}: what is missing was not measured", err=True)
        status = stopped.code if isinstance(stopped, SystemExit) else None
        raise typer.Exit(status if isinstance(status, int) else 130) from stopped
    if document["failed"]:
        names = ", ".join(sorted({one["method"] for one in document["failed"]}))
        typer.echo(f"error: failed: {names}; the first: {document['failed'][0]['error']}", err=True)
        raise typer.Exit(1)
    slower = found.slower(fail_slower) if found is not None and fail_slower is not None else []
    if slower:
        worst = slower[0]
        typer.echo(
            f"error: {len(slower)} slower than {baseline} by more than {fail_slower:g} %; the worst: {worst.operation}"
            f"{f', {worst.method}' if worst.method else ''}, {worst.size:,} elements, {worst.percent:+.0f} %",
            err=True,
        )
        raise typer.Exit(1)


def _lines() -> Callable[[float, float, str], None]:
    """Progress where there is no terminal: a line now and then."""
    start = last = time.monotonic()

    def told(done: float, total: float, what: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _LINE_SECONDS:
            left = (total - done) * ((now - start) / done if done else 1.0)
            typer.echo(f"{100 * done / total:.0f} %, about {_duration(left)} left; next: {what}", err=True)
            last = now

    return told


def _duration(seconds: float) -> str:
    """In words: a minute is as exact as such an estimate can be."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} minutes"
