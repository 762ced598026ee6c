"""``grace bench overhead``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from grace.cli.options import Json
from grace.cli.output import show, warn_if_busy, write_json
from grace.errors import unknown
from grace_bench.report.tables import plain_table


def overhead(
    samples: Annotated[int, typer.Option("--samples", min=4, help="Samples of each kind; they are interleaved.")] = 40,
    toolkit: Annotated[
        str, typer.Option("--toolkit", help="torch, tensorflow, jax, or keras on the backend of KERAS_BACKEND.")
    ] = "torch",
    as_json: Json = False,
) -> None:
    """Measure what Grace itself costs: in torch time against plain DDP, time per tensor, and allocations; in other toolkits
    handing gradients over and back, and time against an all-reduce by hand.

    Example: [bold]grace bench overhead --json[/]
    """
    from grace_bench import handing_over, hosts, overhead

    if toolkit not in ("torch", *hosts.TOOLKITS):
        raise unknown("toolkit", toolkit, ("torch", *hosts.TOOLKITS))
    warn_if_busy()
    rows = overhead.measure(samples) if toolkit == "torch" else handing_over.measure(toolkit, samples)
    if as_json:
        write_json(rows)
    else:
        show(table(rows))


def table(rows: Sequence[dict[str, Any]]) -> RenderableType:
    """What Grace itself costs."""
    lines = plain_table("what Grace itself costs")
    lines.add_column("operation")
    for heading in ("measured", "quartiles"):
        lines.add_column(heading, justify="right", no_wrap=True)
    for line in rows:
        lines.add_row(
            Text(line["operation"]),
            Text(f"{line['value']:.3g} {line['unit']}".strip()),
            f"{line['low']:.3g} to {line['high']:.3g}",
        )
    return lines
