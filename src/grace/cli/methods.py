"""The commands about methods: ``grace list``, ``explain`` and ``verify``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from grace.bench.explain import explanation, listing
from grace.bench.loading import target_of
from grace.bench.report import tables
from grace.bench.report.progress import Checklist
from grace.cli.options import Json
from grace.cli.output import show, write_json
from grace.errors import ConfigurationError


def list_(as_json: Json = False) -> None:
    """List the registered methods.

    Example: [bold]grace list[/]
    """
    rows = listing()
    if as_json:
        write_json(rows)
    else:
        show(tables.listing(rows))


def explain(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="A method, with knobs after a colon.")],
    as_json: Json = False,
) -> None:
    """Explain a method: what it sends, what it promises, and its bytes beside a dense all-reduce.

    Example: [bold]grace explain topk:ratio=0.01[/]
    """
    found = explanation(method)
    if as_json:
        write_json(found)
    else:
        show(tables.explanation(found))


def verify(
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
        write_json(report.document())
    else:
        show(tables.verification(report))
    if not report.holds:
        typer.echo(f"error: {report.method} breaks {', '.join(report.broken)}", err=True)
        raise typer.Exit(1)
