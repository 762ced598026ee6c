"""The commands ``grace simulate`` and ``grace simulate-decoupled``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grace.cli.options import Json, complete_method, parse_methods
from grace.cli.output import show, write_json


def simulate(
    methods: Annotated[
        str,
        typer.Option(
            "--methods", "-m", help="With commas between; your own: file.py:Class.", autocompletion=complete_method
        ),
    ] = "none,topk:ratio=0.01,qsgd:bits=4",
    workers: Annotated[int, typer.Option("--workers", "-w", help="Workers at any time, 1 to 1024.")] = 1024,
    part: Annotated[int, typer.Option("--part", help="Of them, how many take part in a step.")] = 32,
    churn: Annotated[float, typer.Option("--churn", help="Probability that a worker goes in a step; one comes.")] = 0.0,
    late: Annotated[float, typer.Option("--late", help="Share of those who take part that come too late.")] = 0.0,
    hand_over: Annotated[
        bool, typer.Option("--hand-over/--lost", help="What becomes of what a worker owes that goes.")
    ] = False,
    alpha: Annotated[
        float, typer.Option("--alpha", help="Dirichlet: 0.1 gives a worker few classes, inf makes all alike.")
    ] = 1.0,
    steps: Annotated[int, typer.Option("--steps", help="Steps of SGD.")] = 200,
    batch: Annotated[int, typer.Option("--batch", help="Samples of one worker in one step.")] = 8,
    hidden: Annotated[int, typer.Option("--hidden", help="Units of the hidden layer.")] = 128,
    lr: Annotated[float, typer.Option("--lr", help="Learning rate, the same for all methods.")] = 0.2,
    seed: Annotated[int, typer.Option("--seed", help="Of data, events and methods.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="A figure, .svg; a .png beside it.")] = None,
    as_json: Json = False,
) -> None:
    """Simulate hundreds of workers that come and go: loss against bytes.

    The workers of a step run in this process, by the code that runs in training; each has data of its own. All methods see the
    same workers, batches and events. Time grows with the square of --part, as each worker decodes what all have sent.

    Example: [bold]grace simulate --methods none,topk:ratio=0.01 --churn 0.01 --late 0.1 --alpha 0.3 --out loss.svg[/]
    """
    from rich.console import Console
    from rich.markup import escape

    from grace.registry import method as make
    from grace_bench.report.progress import Bar
    from grace_bench.report.render import check_kind
    from grace_bench.simulation.run import Setting
    from grace_bench.simulation.run import simulate as run
    from grace_bench.simulation.show import KINDS, draw, view

    setting = Setting(workers, part, steps, churn, late, hand_over, alpha, batch, hidden, lr, seed)
    names = parse_methods(methods)
    for name in names:
        make(name)  # all of them before anything takes a minute
    if out is not None:
        check_kind(out, *KINDS)
    with Bar(Console(stderr=True), shown=not as_json) as bar:
        document = run(setting, names, lambda name, done, of: bar.draw(done, of, escape(name), f"step {done}/{of}"))
    if out is not None:
        for path in draw(document, out):
            typer.echo(f"wrote {path}", err=True)
    if as_json:
        write_json(document)
    else:
        show(view(document))


def simulate_decoupled(
    methods: Annotated[
        str, typer.Option("--methods", "-m", help="With commas between: compressors.", autocompletion=complete_method)
    ] = "none,topk:ratio=0.1",
    down: Annotated[
        str | None, typer.Option("--down", help="Compressor of what learners get; by default bf16, none with none.")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", "-w", help="Learners, 1 to 1024.")] = 8,
    steps: Annotated[int, typer.Option("--steps", help="Steps that one makes undisturbed.")] = 200,
    step_time: Annotated[float, typer.Option("--step-time", help="Seconds of a step.")] = 1.0,
    slow: Annotated[float, typer.Option("--slow", help="Share of the workers at half speed.")] = 0.0,
    spread: Annotated[float, typer.Option("--spread", help="Deviation of the logarithm of the others' times.")] = 0.0,
    kill_every: Annotated[float, typer.Option("--kill-every", help="Seconds between two deaths; 0: none.")] = 0.0,
    repair: Annotated[float, typer.Option("--repair", help="Seconds until a dead worker is back.")] = 5.0,
    victims: Annotated[int, typer.Option("--victims", help="Workers that die, in turn; 0: all.")] = 0,
    every: Annotated[int, typer.Option("--every", help="H, steps between two exchanges of a fragment.")] = 10,
    fragments: Annotated[int, typer.Option("--fragments", help="Of the model.")] = 2,
    overlap: Annotated[int, typer.Option("--overlap", help="Steps that an exchange may take.")] = 2,
    quorum: Annotated[int, typer.Option("--quorum", help="Learners that a merge waits for.")] = 1,
    outer_momentum: Annotated[float, typer.Option("--outer-momentum", help="Nesterov momentum of the syncer.")] = 0.5,
    latency: Annotated[float, typer.Option("--latency", help="Seconds, one way.")] = 0.05,
    rate: Annotated[float, typer.Option("--rate", help="Bytes a second of each worker's link.")] = 1e6,
    alpha: Annotated[
        float, typer.Option("--alpha", help="Dirichlet: 0.1 gives a worker few classes, inf makes all alike.")
    ] = 1.0,
    batch: Annotated[int, typer.Option("--batch", help="Samples of one worker in one step.")] = 8,
    hidden: Annotated[int, typer.Option("--hidden", help="Units of the hidden layer.")] = 128,
    lr: Annotated[float, typer.Option("--lr", help="Learning rate of SGD, the inner optimizer.")] = 0.2,
    seed: Annotated[int, typer.Option("--seed", help="Of data, speeds and methods.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="A figure, .svg; a .png beside it.")] = None,
    as_json: Json = False,
) -> None:
    """Simulate learners that wait for nobody, while some are killed or slow: goodput and loss.

    The learners and the syncer are those of [bold]grace.decoupled[/], in virtual time and with a made-up network; beside them
    synchronous and elastic training, with the same speeds and deaths.

    Example: [bold]grace simulate-decoupled --workers 4 --kill-every 20 --victims 1 --slow 0.25 --out goodput.svg[/]
    """
    from rich.console import Console
    from rich.markup import escape

    from grace_bench.report.progress import Bar
    from grace_bench.report.render import check_kind
    from grace_bench.simulation.decoupled import DecoupledSetting
    from grace_bench.simulation.decoupled import simulate_decoupled as run
    from grace_bench.simulation.show import KINDS, draw_decoupled, view_decoupled

    setting = DecoupledSetting(
        workers, steps, step_time, slow, spread, kill_every, repair, victims, every, fragments, overlap, quorum,
        outer_momentum, down, latency, rate, alpha, batch, hidden, lr, seed,
    )  # fmt: skip
    if out is not None:
        check_kind(out, *KINDS)
    with Bar(Console(stderr=True), shown=not as_json) as bar:
        document = run(setting, parse_methods(methods), lambda name, done, of: bar.draw(done, of, escape(name), ""))
    if out is not None:
        for path in draw_decoupled(document, out):
            typer.echo(f"wrote {path}", err=True)
    if as_json:
        write_json(document)
    else:
        show(view_decoupled(document))
