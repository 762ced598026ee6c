"""``grace bench overhead``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from grace.bench.report.tables import plain_table
from grace.cli.options import Json
from grace.cli.output import show, write_json


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
        write_json(rows)
    else:
        show(table(rows))


def table(rows: Sequence[dict[str, Any]]) -> RenderableType:
    """What Grace itself costs, beside the goals."""
    lines = plain_table("what Grace itself costs")
    lines.add_column("operation")
    for heading in ("measured", "quartiles", "goal"):
        lines.add_column(heading, justify="right", no_wrap=True)
    for line in rows:
        met = line["value"] <= line["goal"]
        lines.add_row(
            Text(line["operation"]),
            Text(f"{line['value']:.3g} {line['unit']}".strip(), style="green" if met else "yellow"),
            f"{line['low']:.3g} to {line['high']:.3g}",
            f"<= {line['goal']:g}",
        )
    return lines
