"""The commands about this machine: ``grace doctor`` and ``grace bench overhead``."""

from __future__ import annotations

from typing import Annotated

import typer

from grace.cli.options import Json
from grace.cli.output import show, write_json


def doctor(as_json: Json = False) -> None:
    """Show what is active on this machine, and why: kernels, threads, versions, transports, optional packages; warn of traps.

    The exit status is 1 if what the environment variable GRACE_KERNELS asks for cannot be had.

    Example: [bold]GRACE_KERNELS=native-avx2 grace doctor[/]
    """
    from grace.bench.doctor import examine, table

    found = examine()
    if as_json:
        write_json(found)
    else:
        show(table(found), soft=True)
    if found["errors"]:
        raise typer.Exit(1)


def overhead(
    samples: Annotated[int, typer.Option("--samples", min=4, help="Samples of each kind; they are interleaved.")] = 40,
    as_json: Json = False,
) -> None:
    """Measure what Grace itself costs: time against plain DDP, time per tensor, and allocations.

    Example: [bold]grace bench overhead --json[/]
    """
    from grace.bench.overhead import measure
    from grace.bench.report import tables

    rows = measure(samples)
    if as_json:
        write_json(rows)
    else:
        show(tables.overhead(rows))
