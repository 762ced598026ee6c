"""The command ``grace report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grace.cli.options import Json
from grace.cli.output import write_json


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Results: runs/*.json and, if there, codecs*.json.")],
    out: Annotated[Path | None, typer.Option("--out", help="The page's file; DIR/report.html by default.")] = None,
    figures: Annotated[bool, typer.Option("--figures/--no-figures", help="SVG and PNG files in DIR/figures.")] = True,
    as_json: Json = False,
) -> None:
    """Draw results: one HTML page that needs no network, and its figures as SVG and PNG.

    Example: [bold]grace report results[/]
    """
    from grace_bench.report.write import write_report

    done = write_report(directory, out, figures=figures)
    if as_json:
        write_json(done)
        return
    files = f", {len(done['figures'])} files in {directory / 'figures'}" if done["figures"] else ""
    typer.echo(f"{done['page']}: {done['runs']} runs, {len(done['shown'])} figures{files}")
    for run in done["failed"]:
        typer.echo(f"failed: {run['file']} ({run['method']}): {run['error'].strip().splitlines()[-1]}", err=True)
    for file in done["skipped"]:
        typer.echo(f"left out: {file['file']}: {file['reason']}", err=True)
    for figure in done["missing"]:
        typer.echo(f"no data for {figure['figure']}, which needs {figure['needs']}: {figure['command']}", err=True)
