"""``grace advise``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grace.cli.options import Cores, Json, OneWay, Speeds, parse_methods, parse_numbers
from grace.cli.output import show, warn_if_busy, write_json
from grace.errors import ConfigurationError

_WIDTH = 120  # where there is no terminal


def advise(
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODULE:FUNCTION", help="Returns a model, or (model, batch, loss)."),
    ] = None,
    task: Annotated[str | None, typer.Option("--task", help="A task of the suite, or module:Class.")] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            "-m",
            help="With commas between, algorithms (diloco:every=32) too; your own: file.py:Class. [default: all methods]",
        ),
    ] = None,
    links: Speeds = "1gbit,10gbit",
    latency: OneWay = "0",
    workers: Annotated[str, typer.Option("--workers", "-w", help="Numbers of workers, 2 to 1024.")] = "8",
    cores: Cores = 1.0,
    step_ms: Annotated[
        float | None, typer.Option("--step-ms", help="A step without communication; measured here without it.")
    ] = None,
    batch: Annotated[int | None, typer.Option("--batch", min=1, help="With --task: samples of one worker.")] = None,
    device: Annotated[
        str, typer.Option("--device", help="cpu, or cuda: codecs are timed on this machine's GPU; needs --step-ms.")
    ] = "cpu",
    codecs: Annotated[
        Path | None,
        typer.Option(
            "--codecs", help="With --device cuda: codecs.json of grace bench codecs --device cuda, not a GPU here."
        ),
    ] = None,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Timed exchanges of each method, at most.")] = 5,
    out: Annotated[Path | None, typer.Option("--out", help="A figure: .svg or .html.")] = None,
    as_json: Json = False,
) -> None:
    """Advise which method to use for a model, on a network: predicted, without a cluster.

    One worker's exchange of the model's real shapes runs here against a network that answers at once; the link model does the
    rest. Nothing is trained, and no links are made.

    Example: [bold]grace advise --task resnet20_small --link 1gbit,10gbit --workers 8[/]
    """
    from grace.predict.links import parse_links
    from grace_bench.advise.run import advise as ask
    from grace_bench.advise.show import KINDS, draw, view
    from grace_bench.advise.subject import of_model, of_task
    from grace_bench.codecs.break_even import read_times
    from grace_bench.report.render import check_kind

    if (model is None) == (task is None):
        raise ConfigurationError("say what to advise on: --model module:function, or --task NAME (not both)")
    if out is not None:
        check_kind(out, *KINDS)
    chosen, counts = parse_links(links, latency), parse_numbers(workers, "--workers")
    warn_if_busy()
    subject = of_task(task, batch) if task is not None else of_model(str(model))
    advice, seconds = ask(
        subject, chosen, counts, methods=None if methods is None else parse_methods(methods), step_ms=step_ms, cores=cores,
        samples=samples, device=device, codecs=None if codecs is None else read_times(codecs),
        tell=lambda text: typer.echo(f"measuring {text}", err=True),
    )  # fmt: skip
    if out is not None:
        for path in draw(advice, seconds, out):
            typer.echo(f"wrote {path}", err=True)
    if as_json:
        write_json(advice)
    else:
        show(view(advice), _WIDTH)
