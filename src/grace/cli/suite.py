"""The commands about the benchmark suite itself: ``grace bench smoke``, ``link`` and ``predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from grace.cli.options import WIDE, AddedLatency, Cores, Json, OneWay, Speeds, folder, parse_numbers
from grace.cli.output import show, warn_if_busy, write_json
from grace.errors import ConfigurationError, GraceError
from grace_bench.report import tables
from grace_bench.report.progress import SweepReporter
from grace_bench.runs.results import Document, DocumentError, decode


def smoke(
    out: Annotated[Path, typer.Option("--out", callback=folder, help="Folder of results.")], as_json: Json = False
) -> None:
    """Try the suite itself in less than a minute: two tasks, four methods, two workers, two links where permitted.

    Checks every document against the schema, and that the report can be made. The exit status is 1 if something is wrong.

    Example: [bold]grace bench smoke --out smoke[/]
    """
    from grace_bench.smoke import run

    warn_if_busy()
    document = run(out, lambda runs: SweepReporter(Console(stderr=True), runs, bar=not as_json))
    if as_json:
        write_json(document)
    else:
        for line in document["checked"]:
            typer.echo(line)
    if document["problems"]:
        raise GraceError("; ".join(document["problems"]))


def link(
    links: Speeds = "100mbit,1gbit,10gbit",
    latency: AddedLatency = "0",
    seconds: Annotated[float, typer.Option("--seconds", min=0.5, max=60, help="How long each is measured.")] = 2.0,
    as_json: Json = False,
) -> None:
    """Measure how fast links really are: one TCP connection between two workers, compared with what was asked for.

    Example: [bold]grace bench link --link 1gbit[/]
    """
    from grace.predict.links import parse_links
    from grace_bench.network.throughput import measure_link

    speeds = parse_links(links, latency)
    warn_if_busy()
    rows = [measure_link(speed, seconds) for speed in speeds]
    if as_json:
        write_json(rows)
    else:
        show(tables.links(rows), WIDE)


def predict(
    results: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a sweep's results.")],
    links: Speeds = "100mbit,1gbit,10gbit",
    latency: OneWay = "0",
    workers: Annotated[str, typer.Option("--workers", "-w", help="Numbers of workers.")] = "4,8,16",
    cores: Cores = 1.0,
    as_json: Json = False,
) -> None:
    """Predict step times on other links and with other numbers of workers, from what a sweep has measured: ranked tables.

    Seeds are combined. Each table says which method wins, and below which link speed a method is faster than the best one
    without compression. This uses the link model: no links are made, and nothing is trained.

    Example: [bold]grace bench predict results --links 1gbit --workers 4,16[/]
    """
    from grace.predict.links import parse_links
    from grace_bench.report import predictions

    chosen, counts = parse_links(links, latency), parse_numbers(workers, "--workers")
    files = sorted((results / "runs").glob("*.json"))
    if not files:
        raise ConfigurationError(f"{results} has no runs/*.json: run grace bench train --out {results} first")
    predicted = predictions.predict([_read(file) for file in files], chosen, counts, cores)
    if not predicted.tables:
        raise ConfigurationError(f"no run in {results} has what the link model needs: {', '.join(predicted.left_out)}")
    if as_json:
        write_json(predicted)
        return
    show(tables.predictions(predicted), WIDE)
    if predicted.left_out:
        typer.echo(f"not predicted: {', '.join(predicted.left_out)} (failed, or without a measured network)", err=True)


def _read(file: Path) -> Document:
    try:
        return decode(file.read_bytes())
    except DocumentError as error:
        raise DocumentError(f"{file}: {error}") from error
