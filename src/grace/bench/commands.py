"""The commands of ``grace``. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console, RenderableType
from typer.core import TyperGroup

import grace
from grace.adapters.groups import Granularity
from grace.bench import suite
from grace.bench.codecs.command import codecs
from grace.bench.compare import Outcome, compare, document, plain, succeeded, with_baseline
from grace.bench.config import RunConfig
from grace.bench.doctor import doctor
from grace.bench.explain import explanation, listing
from grace.bench.extras import need
from grace.bench.launch import launch
from grace.bench.loading import target_of
from grace.bench.report import tables
from grace.bench.report.command import report
from grace.bench.report.progress import Checklist, Reporter
from grace.bench.results import encode
from grace.bench.tasks import find_task
from grace.errors import ConfigurationError, GraceError


class _Group(TyperGroup):
    """Errors that Grace raises on purpose are told in a line, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except GraceError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(1) from error


app = typer.Typer(
    cls=_Group, no_args_is_help=True, add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False,
    help="Gradient compression for distributed deep learning.",
)  # fmt: skip
bench = typer.Typer(no_args_is_help=True, help="Benchmarks: sweeps over links, and what Grace itself costs.")
app.add_typer(bench, name="bench")
app.command("report")(report)
bench.command("codecs")(codecs)
for command in (suite.train, suite.smoke, suite.link, suite.predict):
    bench.command(command.__name__)(command)
app.command("doctor")(doctor)

Json = Annotated[bool, typer.Option("--json", help="Write JSON, and nothing else, to stdout.")]
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


@app.callback(invoke_without_command=True)
def _main(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    if version:
        typer.echo(f"grace {grace.__version__}")
        raise typer.Exit


def _show(view: RenderableType) -> None:
    """On stdout; as wide as the text wants where there is no terminal, so that nothing is cut."""
    console = Console()
    Console(width=None if console.is_terminal else 160, highlight=False).print(view)


def _write_json(document: Any) -> None:
    typer.echo(json.dumps(document, indent=1, allow_nan=False))


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the registered methods.

    Example: [bold]grace list[/]
    """
    rows = listing()
    if as_json:
        _write_json(rows)
    else:
        _show(tables.listing(rows))


@app.command()
def explain(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="A method, with knobs after a colon.")],
    as_json: Json = False,
) -> None:
    """Explain a method: what it sends, what it promises, and its bytes beside a dense all-reduce.

    Example: [bold]grace explain topk:ratio=0.01[/]
    """
    found = explanation(method)
    if as_json:
        _write_json(found)
    else:
        _show(tables.explanation(found))


@app.command()
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
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the result (JSON).")] = None,
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
        typer.echo(encode(result))
    else:
        _show(tables.comparison([Outcome(method, result=result)]))


@app.command("compare")
def compare_(
    methods: Annotated[str, typer.Option("--methods", "-m", help="Methods with commas between; none is always added.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for results, tables and figures.")],
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
        _write_json(document(outcomes))
    else:
        _show(tables.comparison(outcomes))
        written = "results.json, runs.csv, curves.csv" + (", comparison.png, comparison.svg" if results else "")
        typer.echo(f"In {out}: {written}", err=True)
    if len(results) < len(outcomes):
        failed = ", ".join(outcome.method for outcome in outcomes if outcome.result is None)
        typer.echo(f"error: {len(outcomes) - len(results)} of {len(outcomes)} methods failed: {failed}", err=True)
        raise typer.Exit(1)


@bench.command("overhead")
def overhead(
    samples: Annotated[int, typer.Option("--samples", min=4, help="Samples of each kind; they are interleaved.")] = 40,
    as_json: Json = False,
) -> None:
    """Measure what Grace itself costs: time against plain DDP, time per tensor, and allocations.

    Example: [bold]grace bench overhead --json[/]
    """
    from grace.bench.overhead import measure

    rows = measure(samples)
    if as_json:
        _write_json(rows)
    else:
        _show(tables.overhead(rows))


@app.command("verify")
def verify_(
    target: Annotated[
        str,
        typer.Argument(
            metavar="METHOD", help="module:Class, file.py:Class, or a method with its knobs, such as topk:ratio=0.01."
        ),
    ],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer draws and inputs.")] = False,
    thorough: Annotated[bool, typer.Option("--thorough", help="More draws, inputs and workers; minutes.")] = False,
    as_json: Json = False,
) -> None:
    """Verify a method: runs the laws on it, and tells what holds. Yours, or a registered one.

    METHOD is a Compressor (the first communicator that takes it goes around it), a Method, or a function that returns one.
    The exit status is 0 if all laws hold, 1 if one is broken, 2 if there is no such method.

    Example: [bold]grace verify my_method.py:MyMethod[/]
    """
    from grace.verify import NORMAL, QUICK, THOROUGH, verify

    if quick and thorough:
        raise typer.BadParameter("--quick or --thorough, not both")
    profile = QUICK if quick else THOROUGH if thorough else NORMAL
    try:
        given = target_of(target)
        with Checklist(Console(stderr=True)) as checklist:
            report = verify(given, profile, checklist.began)
    except ConfigurationError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    if as_json:
        _write_json(report.document())
    else:
        _show(tables.verification(report))
    if not report.holds:
        typer.echo(f"error: {report.method} breaks {', '.join(report.broken)}", err=True)
        raise typer.Exit(1)


def run() -> None:
    """The command line, as a program."""
    try:
        app()
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
        sys.exit(130)
