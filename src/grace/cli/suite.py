"""The commands about the benchmark suite itself: ``grace bench smoke``, ``link`` and ``predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from grace.bench.report import tables
from grace.bench.report.progress import SweepReporter
from grace.bench.results import Document, DocumentError, decode
from grace.cli.options import Json, folder, parse_numbers
from grace.cli.output import show, write_json
from grace.errors import ConfigurationError, GraceError

_WIDTH = 240  # of a table of many columns, where there is no terminal


def smoke(
    out: Annotated[Path, typer.Option("--out", callback=folder, help="Folder of results.")], as_json: Json = False
) -> None:
    """Try the suite itself in less than a minute: two tasks, four methods, two workers, two links where permitted.

    Checks every document against the schema, and that the report can be made. The exit status is 1 if something is wrong.

    Example: [bold]grace bench smoke --out smoke[/]
    """
    from grace.bench.smoke import run

    found = run(out, lambda runs: SweepReporter(Console(stderr=True), runs, bar=not as_json))
    if as_json:
        write_json(found)
    else:
        for line in found["checked"]:
            typer.echo(line)
    if found["problems"]:
        raise GraceError("; ".join(found["problems"]))


def link(
    links: Annotated[
        str, typer.Option("--link", "--links", help="Speeds, with commas between.")
    ] = "100mbit,1gbit,10gbit",
    latency: Annotated[str, typer.Option("--latency", help="Added to every link: 0.1ms, 50us. Needs netem.")] = "0",
    seconds: Annotated[float, typer.Option("--seconds", min=0.5, max=60, help="How long each is measured.")] = 2.0,
    as_json: Json = False,
) -> None:
    """Measure how fast links really are: one TCP connection between two workers, beside what was asked for.

    Example: [bold]grace bench link --link 1gbit[/]
    """
    from grace.bench.network.links import parse_links
    from grace.bench.network.throughput import measure_link

    rows = [measure_link(one, seconds) for one in parse_links(links, latency)]
    if as_json:
        write_json(rows)
    else:
        show(tables.links(rows), _WIDTH)


def predict(
    results: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a sweep's results.")],
    links: Annotated[
        str, typer.Option("--links", "--link", help="Speeds, with commas between.")
    ] = "100mbit,1gbit,10gbit",
    latency: Annotated[str, typer.Option("--latency", help="One way, from one worker to another: 0.1ms.")] = "0",
    workers: Annotated[str, typer.Option("--workers", "-w", help="Numbers of workers.")] = "4,8,16",
    cores: Annotated[float, typer.Option("--cores", min=0.1, help="Cores of each worker.")] = 1.0,
    as_json: Json = False,
) -> None:
    """Predict step times on other links and with other numbers of workers, from what a sweep has measured.

    Uses the link model: no links are made, and nothing is trained.

    Example: [bold]grace bench predict results --links 1gbit --workers 4,16[/]
    """
    from grace.bench.network.forecast import forecast
    from grace.bench.network.links import parse_links

    chosen, counts = parse_links(links, latency), parse_numbers(workers, "--workers")
    files = sorted((results / "runs").glob("*.json"))
    if not files:
        raise ConfigurationError(f"{results} has no runs/*.json: run grace bench train --out {results} first")
    rows = [row for file in files for row in forecast(_read(file), chosen, counts, cores)]
    if as_json:
        write_json(rows)
    else:
        show(tables.predictions(rows), _WIDTH)


def _read(file: Path) -> Document:
    try:
        return decode(file.read_bytes())
    except DocumentError as error:
        raise DocumentError(f"{file}: {error}") from error
