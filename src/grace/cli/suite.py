"""The commands of the benchmark suite: ``grace bench train``, ``smoke``, ``link`` and ``predict``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console

from grace.bench.baselines import BASELINES
from grace.bench.config import RunConfig
from grace.bench.external import Company, place
from grace.bench.launch import Launcher, launch_all
from grace.bench.network.links import seconds_of
from grace.bench.report.runs import SweepReporter, link_table, prediction_table, sweep_table
from grace.bench.results import Result, decode
from grace.bench.sweep import Ended, Plan, check, check_memory, sweep
from grace.bench.trackers import TensorBoard, Tracker, Wandb
from grace.cli.options import Json, folder
from grace.cli.output import show, write_json
from grace.errors import ConfigurationError, GraceError
from grace.registry import split_methods
from grace.run.groups import Granularity

_LAUNCHERS = ("auto", "local", "ray")
_WIDTH = 240  # of a table of many columns, where there is no terminal


def _list(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _numbers(text: str, option: str) -> list[int]:
    try:
        return [int(part) for part in _list(text)]
    except ValueError as error:
        raise ConfigurationError(f"{option} {text!r}: expected whole numbers with commas between") from error


def train(
    methods: Annotated[str, typer.Option("--methods", "-m", help="Methods, with commas between.")],
    out: Annotated[
        Path, typer.Option("--out", callback=folder, help="Folder of results; a stopped sweep goes on where it was.")
    ],
    tasks: Annotated[str, typer.Option("--tasks", "--task", help="Tasks, with commas between.")] = "digits",
    workers: Annotated[
        str | None, typer.Option("--workers", "-w", help="Numbers of workers: 2,4. [default: 4]")
    ] = None,
    links: Annotated[
        str, typer.Option("--links", "--link", help="none, 100mbit, 1gbit, 10gbit, 25gbit, or any such speed.")
    ] = "none",
    seeds: Annotated[str, typer.Option("--seeds", "--seed", help="Seeds, with commas between.")] = "0",
    baselines: Annotated[
        str, typer.Option("--baselines", help="What runs beside the methods; '' is nothing.")
    ] = ",".join(BASELINES),
    steps: Annotated[int | None, typer.Option("--steps", help="Length in steps; by default the task's.")] = None,
    epochs: Annotated[float | None, typer.Option("--epochs", help="Length in epochs instead.")] = None,
    evaluations: Annotated[int, typer.Option("--evaluations", help="How many times the test set is evaluated.")] = 15,
    batch: Annotated[int | None, typer.Option("--batch", help="Samples of one worker and step.")] = None,
    lr: Annotated[float | None, typer.Option("--lr", help="Peak learning rate, instead of what suits.")] = None,
    data: Annotated[
        str | None, typer.Option("--data", help="Folder of the official files, or synthetic: random batches.")
    ] = None,
    granularity: Annotated[str, typer.Option("--granularity", help="parameter, bucket or model.")] = "parameter",
    latency: Annotated[str, typer.Option("--latency", help="Added to every link: 0.1ms, 50us. Needs netem.")] = "0",
    threads: Annotated[
        int | None, typer.Option("--threads", help="Threads of each worker. [default: its share]")
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds without progress that end a run.")] = 300.0,
    launcher: Annotated[
        str,
        typer.Option("--launcher", help="auto (this machine, or the torchrun or Slurm job one is in), local, or ray."),
    ] = "auto",
    tensorboard: Annotated[Path | None, typer.Option("--tensorboard", help="Folder for TensorBoard.")] = None,
    wandb: Annotated[str | None, typer.Option("--wandb", help="Project at Weights & Biases.")] = None,
    as_json: Json = False,
) -> None:
    """Train tasks with methods over links: every combination, and the baselines, one result file each.

    Run the same command again to go on where it stopped. A run that fails is recorded, and the others go on.

    Example: [bold]grace bench train --tasks lstm_small --methods topk:ratio=0.01,qsgd --links 1gbit --out results[/]
    """
    if launcher not in _LAUNCHERS:
        raise ConfigurationError(f"launcher {launcher!r} is unknown; legal: {', '.join(_LAUNCHERS)}")
    here = place() if launcher == "auto" else None
    count = str(here.world) if here is not None and workers is None else workers or "4"
    plan = Plan(
        tasks=_list(tasks), methods=split_methods(methods), workers=_numbers(count, "--workers"), links=_list(links),
        seeds=_numbers(seeds, "--seeds"), baselines=_list(baselines),
        common={
            "steps": steps, "epochs": epochs, "granularity": cast("Granularity", granularity), "lr": lr, "data": data,
            "evaluations": evaluations, "timeout": timeout, "batch": batch, "latency": seconds_of(latency), "cores": threads,
        },
    )  # fmt: skip
    if here is not None:
        company = Company(here, timeout)
        if here.rank:
            company.follow()
            return
        with company.led():
            configs = plan.runs()
            company.check(configs)
            check_memory([])
            _sweep(configs, out, company.lead, tensorboard, wandb, as_json=as_json)
        return
    configs = plan.runs()
    start: Launcher = launch_all
    if launcher == "ray":
        from grace.bench.ray_launcher import Cluster

        cluster = Cluster()
        cluster.check(configs)
        start = cluster.launch
    else:
        check_memory(configs)
    _sweep(configs, out, start, tensorboard, wandb, as_json=as_json)


def _sweep(
    configs: list[RunConfig],
    out: Path,
    launcher: Launcher,
    tensorboard: Path | None,
    wandb: str | None,
    *,
    as_json: bool,
) -> None:
    trackers: list[Tracker] = [] if tensorboard is None else [TensorBoard(tensorboard)]
    trackers += [] if wandb is None else [Wandb(wandb, out)]
    check(configs, out)
    with SweepReporter(Console(stderr=True), len(configs), bar=not as_json) as reporter:

        def ended(run: Ended) -> None:
            reporter.ended(run)
            if isinstance(run.document, Result) and not run.earlier:
                for tracker in trackers:
                    tracker.log(run.file.stem, run.document)

        runs = sweep(
            configs, out, on_start=reporter.started, on_progress=reporter.progressed, on_end=ended, launcher=launcher,
            command=list(sys.argv),
        )  # fmt: skip
    if as_json:
        write_json([run.document for run in runs])
    else:
        show(sweep_table([run.document for run in runs]), _WIDTH)
        typer.echo(f"In {out}: runs/, runs.csv. Next: grace report {out}", err=True)
    failed = [run for run in runs if not run.ok]
    if failed:
        names = ", ".join(dict.fromkeys(run.config.method for run in failed))
        raise GraceError(f"{len(failed)} of {len(runs)} runs failed: {names}. The same command tries them again")


def smoke(
    out: Annotated[Path, typer.Option("--out", callback=folder, help="Folder of results.")],
    as_json: Json = False,
) -> None:
    """Try the suite itself in less than a minute: two tasks, four methods, two workers, two links where permitted.

    Checks every document against the schema, and that the report can be made. The exit status is 1 if something is wrong.

    Example: [bold]grace bench smoke --out smoke[/]
    """
    from grace.bench.smoke import run

    with SweepReporter(Console(stderr=True), 0, bar=not as_json) as reporter:
        found = run(out, reporter)
    if as_json:
        write_json(found)
    else:
        for line in found["checked"]:
            typer.echo(line)
    if found["problems"]:
        raise GraceError("; ".join(found["problems"]))


def link(
    links: Annotated[
        str, typer.Option("--link", "--links", help="Speeds, with commas between.")
    ] = "100mbit,1gbit,10gbit",
    latency: Annotated[str, typer.Option("--latency", help="Added to every link: 0.1ms, 50us. Needs netem.")] = "0",
    seconds: Annotated[float, typer.Option("--seconds", min=0.5, max=60, help="How long each is measured.")] = 2.0,
    as_json: Json = False,
) -> None:
    """Measure how fast links really are: one TCP connection between two workers, beside what was asked for.

    Example: [bold]grace bench link --link 1gbit[/]
    """
    from grace.bench.network.links import parse_links
    from grace.bench.network.throughput import measured

    rows = [measured(one, seconds) for one in parse_links(links, latency)]
    if as_json:
        write_json(rows)
    else:
        show(link_table(rows), _WIDTH)


def predict(
    results: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a sweep's results.")],
    links: Annotated[
        str, typer.Option("--links", "--link", help="Speeds, with commas between.")
    ] = "100mbit,1gbit,10gbit",
    latency: Annotated[str, typer.Option("--latency", help="One way, from one worker to another: 0.1ms.")] = "0",
    workers: Annotated[str, typer.Option("--workers", "-w", help="Numbers of workers.")] = "4,8,16",
    cores: Annotated[float, typer.Option("--cores", min=0.1, help="Cores of each worker.")] = 1.0,
    as_json: Json = False,
) -> None:
    """Predict step times on other links and with other numbers of workers, from what a sweep has measured.

    Uses the link model: no links are made, and nothing is trained.

    Example: [bold]grace bench predict results --links 1gbit --workers 4,16[/]
    """
    from grace.bench.network.forecast import forecast
    from grace.bench.network.links import parse_links

    documents = [decode(path.read_bytes()) for path in sorted((results / "runs").glob("*.json"))]
    if not documents:
        raise ConfigurationError(f"{results} has no runs/*.json: run grace bench train --out {results} first")
    chosen = parse_links(links, latency)
    rows = [row for one in documents for row in forecast(one, chosen, _numbers(workers, "--workers"), cores)]
    if as_json:
        write_json(rows)
    else:
        show(prediction_table(rows), _WIDTH)
