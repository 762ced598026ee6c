"""What Grace itself costs: ``python -m benchmarks.overhead``.

In torch time against plain DistributedDataParallel, time per tensor, and allocations; in other toolkits handing gradients over
and back, and time against an all-reduce by hand.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from benchmarks.overhead import handing_over, ladder
from benchmarks.overhead.hosts import TOOLKITS
from grace.cli.output import warn_if_busy
from grace_command.text import plain_table


def table(rows: list[dict[str, Any]]) -> RenderableType:
    """What was measured, and its quartiles."""
    lines = plain_table("what Grace itself costs")
    lines.add_column("operation")
    for heading in ("measured", "quartiles"):
        lines.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        measured = f"{row['value']:.3g} {row['unit']}".strip()
        lines.add_row(Text(row["operation"]), measured, f"{row['low']:.3g} to {row['high']:.3g}")
    return lines


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__)
    parser.add_argument("--samples", type=int, default=40, help="of each kind, 4 or more; they are interleaved [40]")
    parser.add_argument(
        "--toolkit",
        choices=("torch", *TOOLKITS),
        default="torch",
        help="keras: on the backend of KERAS_BACKEND [torch]",
    )
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    chosen = parser.parse_args()
    if chosen.samples < 4:
        parser.error("--samples: 4 or more")
    warn_if_busy()
    if chosen.toolkit == "torch":
        rows = ladder.measure(chosen.samples)
    else:
        rows = handing_over.measure(chosen.toolkit, chosen.samples)
    if chosen.json:
        json.dump(rows, sys.stdout, indent=2)
    else:
        Console().print(table(rows))


if __name__ == "__main__":  # not in processes that it spawns
    main()
