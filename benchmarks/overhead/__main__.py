"""The cost of Grace itself: ``python -m benchmarks.overhead``.

With ``--device`` what a bucket of 25 MB costs the host that submits it, and the device, with ``--rows`` a block of rows under
``fully_shard``; with ``--steps`` what a step of training takes there, against plain DistributedDataParallel; with ``--calls``
what single calls cost the host. Else in torch time against plain DistributedDataParallel, time
per tensor, and allocations; in other toolkits handing gradients over and back, and time against an all-reduce by hand.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from rich.console import Console, RenderableType
from rich.text import Text

from benchmarks.overhead import buckets, calls, handing_over, ladder, steps
from benchmarks.overhead.hosts import TOOLKITS
from grace.cli.output import warn_if_busy
from grace.errors import ConfigurationError
from grace.registry import method, spell, split_methods
from grace_bench.devices import device_of
from grace_command.text import plain_table


def table(rows: list[dict[str, Any]]) -> RenderableType:
    """The measurements, with their quartiles."""
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
    parser.add_argument("--device", help="measure buckets on this one: cpu, cuda, cuda:1")
    parser.add_argument("--steps", action="store_true", help="with --device: measure steps of training, not buckets")
    parser.add_argument("--bucket-mb", type=float, metavar="MB", help="with --steps: the size of DDP's buckets [25]")
    parser.add_argument("--rows", action="store_true", help="with --device: measure a block under fully_shard")
    parser.add_argument("--calls", action="store_true", help="with --device: measure single calls of the host")
    parser.add_argument("--methods", default=",".join(buckets.METHODS), help="which are measured there [%(default)s]")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument(
        "--lines", action="store_true", help="print each row as a line of JSON, as soon as it is measured"
    )
    chosen = parser.parse_args()
    if chosen.samples < 4:
        parser.error("--samples: 4 or more")
    kinds = [kind for kind in ("steps", "rows", "calls") if getattr(chosen, kind)]
    if kinds and chosen.device is None:
        parser.error(f"--{kinds[0]} needs --device, such as --device cuda")
    if len(kinds) > 1:
        parser.error(f"--{kinds[0]} or --{kinds[1]}: one at a time")
    try:
        device = None if chosen.device is None else device_of(chosen.device)
        methods = [spell(method(spec)) for spec in split_methods(chosen.methods)]
    except ConfigurationError as error:
        parser.error(str(error))
    warn_if_busy()
    rows: Iterable[dict[str, Any]]
    if device is not None and chosen.steps:
        rows = steps.measure(methods, chosen.samples, device, bucket_mb=chosen.bucket_mb)
    elif device is not None and chosen.calls:
        rows = _in_a_group(chosen.samples, device)
    elif device is not None:
        shapes = buckets.BLOCK if chosen.rows else buckets.SHAPES
        rows = buckets.measure(methods, chosen.samples, device, shapes, chosen.rows)
    elif chosen.toolkit == "torch":
        rows = ladder.measure(chosen.samples)
    else:
        rows = handing_over.measure(chosen.toolkit, chosen.samples)
    if chosen.lines:
        for row in rows:
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()
    elif chosen.json:
        json.dump(list(rows), sys.stdout, indent=2)
    else:
        Console().print(table(list(rows)))


def _in_a_group(samples: int, device: torch.device) -> Iterator[dict[str, Any]]:
    with steps.one_worker(device):
        yield from calls.measure(samples, device)


if __name__ == "__main__":  # not in processes that it spawns
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("interrupted: nothing was kept")
