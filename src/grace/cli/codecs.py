"""``grace bench codecs``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grace.cli.options import Json, Speeds, folder, parse_numbers
from grace.cli.output import show, warn_if_busy, write_json


def codecs(
    methods: Annotated[
        str | None,
        typer.Option("--methods", "-m", help="Methods, with commas between; your own: file.py:Class. [default: all]"),
    ] = None,
    sizes: Annotated[
        str, typer.Option("--sizes", help="Elements, with commas between; K is 1,024, M 1,000,000.")
    ] = "256K,1M,10M",
    links: Speeds = "100mbit,1gbit,10gbit",
    workers: Annotated[int, typer.Option("--workers", "-w", help="Workers that exchange, 2 to 256.")] = 4,
    threads: Annotated[
        str | None, typer.Option("--threads", help="Numbers of threads, with commas between. [default: all cores]")
    ] = None,
    samples: Annotated[int, typer.Option("--samples", help="Samples of each case, 3 to 1,000.")] = 5,
    limit: Annotated[float, typer.Option("--limit", help="Seconds of one run; what takes longer is left out.")] = 1.0,
    device: Annotated[str, typer.Option("--device", help="Where: cpu, cuda, cuda:1.")] = "cpu",
    out: Annotated[
        Path | None, typer.Option("--out", callback=folder, help="Folder for codecs.json and figures.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure how long each method takes on this machine, and say on which links it pays.

    Encoding, encoding with error feedback, decoding and summing, on tensors of your sizes; bytes; and the speed of a link
    below which a method is faster than an all-reduce in fp32 and in bf16.

    Example: [bold]grace bench codecs --methods topk,qsgd,powersgd --sizes 1M,25M --links 1gbit,10gbit[/]
    """
    from grace.predict.links import parse_links
    from grace_bench.codecs.break_even import BreakEvenBench
    from grace_bench.codecs.figure import draw
    from grace_bench.codecs.plan import plan_of
    from grace_bench.codecs.session import judge, run, write_document
    from grace_bench.codecs.table import view
    from grace_bench.report.render import renderer

    counts = [] if threads is None else parse_numbers(threads, "--threads")
    plan = plan_of(methods, sizes, counts, samples, limit=limit, workers=workers, device=device)
    speeds = parse_links(links)
    if out is not None:
        renderer()  # now, not after minutes
    warn_if_busy()
    document, stop = run(BreakEvenBench(plan, speeds), out, "grace")
    if out is not None:
        write_document(document, out)
        names = ["codecs.json", *(path.name for path in draw(document, out))]
        typer.echo(f"In {out}: {', '.join(names)}", err=True)
    if as_json:
        write_json(document)
    else:
        show(view(document))
    if status := judge(document, stop):
        raise typer.Exit(status)
