"""The score board as a program."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.codecs.baseline import compare, read
from benchmarks.codecs.board import Board
from benchmarks.codecs.figure import draw
from benchmarks.codecs.plan import board_plan
from benchmarks.codecs.table import view
from grace.cli.errors import Command
from grace.cli.options import Json, folder
from grace.cli.output import show, write_json
from grace.errors import ConfigurationError, GraceError
from grace_bench.codecs.session import judge, run, write_document
from grace_bench.report.render import renderer

_PROGRAM = "python -m benchmarks.codecs"
_WIDTH = 180  # where there is no terminal
app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command(cls=Command)
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
        float, typer.Option("--budget", help="Seconds of all samples of a case; what is slow gets fewer.")
    ] = 0.5,
    quick: Annotated[
        bool, typer.Option("--quick", help="Methods with a goal, 4K and 1M elements, one thread.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", callback=folder, help="Folder for codecs.json and figures.")
    ] = None,
    baseline: Annotated[Path | None, typer.Option("--baseline", help="codecs.json of an earlier run.")] = None,
    fail_slower: Annotated[
        float | None,
        typer.Option(
            "--fail-slower", min=0, help="Exit 1 if anything is slower than the baseline by more than so many percent."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure how long compressing and decompressing take, beside torch's y.add_(x), and hold it against the goals.

    Example: [bold]python -m benchmarks.codecs --quick --out timings[/]
    """
    if fail_slower is not None and baseline is None:
        raise ConfigurationError("--fail-slower needs a --baseline to compare with")
    plan = board_plan(methods, sizes, threads, samples, limit=limit, budget=budget, quick=quick)
    then = read(baseline) if baseline is not None else None  # now, not after minutes
    if out is not None:
        renderer()  # now, not after minutes
    document, stop = run(Board(plan), out, _PROGRAM)
    comparison = compare(document, then) if then is not None else None
    document["baseline"] = None if comparison is None else {"file": str(baseline), **comparison.document()}
    written: list[str] = []
    if out is not None:
        write_document(document, out)
        written = ["codecs.json", *(path.name for path in (draw(document, out) if stop is None else ()))]
    if as_json:
        write_json(document)
    else:
        show(view(document, comparison), _WIDTH)
        if written:
            typer.echo(f"In {out}: {', '.join(written)}", err=True)
    if status := judge(document, stop):
        raise typer.Exit(status)
    slower = comparison.slower(fail_slower) if comparison is not None and fail_slower is not None else []
    if slower:
        worst = slower[0]
        raise GraceError(
            f"{len(slower)} slower than {baseline} by more than {fail_slower:g} %; the worst: {worst.operation}"
            f"{f', {worst.method}' if worst.method else ''}, {worst.size:,} elements, {worst.percent:+.0f} %"
        )


def main() -> None:
    """The score board, as a program."""
    try:
        app(prog_name=_PROGRAM)
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
        sys.exit(130)
