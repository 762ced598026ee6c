"""The commands that train: ``grace train``, ``grace compare`` and ``grace bench train``. All are sweeps."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console, Group, RenderableType

from grace.cli.options import (
    WIDE,
    AddedLatency,
    Json,
    complete_link,
    complete_method,
    complete_task,
    folder,
    parse_methods,
    parse_names,
    parse_numbers,
)
from grace.cli.output import show, warn_if_busy, write_json
from grace.errors import ConfigurationError, GraceError
from grace.predict.links import seconds_of
from grace.transports.launchers import Place, find_place
from grace_bench.extras import TORCH
from grace_bench.report import tables
from grace_bench.report.files import draw_comparison
from grace_bench.report.progress import SweepReporter
from grace_bench.report.render import renderer
from grace_bench.report.slower_links import over_slower_links
from grace_bench.runs.baselines import BASELINES
from grace_bench.runs.config import RunConfig
from grace_bench.runs.plan import SweepPlan, add_baseline, check, check_memory
from grace_bench.runs.results import Failure, Result
from grace_bench.runs.trackers import TensorBoard, Tracker, Wandb
from grace_bench.workers.external import ExternalWorkers
from grace_bench.workers.local import Launcher, launch
from grace_bench.workers.sweep import RunOutcome, sweep

_LAUNCHERS = ("auto", "local", "ray")
_COMMON = ("steps", "epochs", "evaluations", "batch", "lr", "data", "granularity", "timeout", "machines", "device")
C = TypeVar("C", bound=Callable[..., None])

Methods = Annotated[
    str,
    typer.Option(
        "--methods", "--method", "-m", autocompletion=complete_method,
        help="Methods, with commas between, such as topk:ratio=0.01,qsgd; your own: file.py:Class or module:Class.",
    ),
]  # fmt: skip
_OUT = typer.Option("--out", callback=folder, help="Folder of results; what is finished in it does not run again.")
Out = Annotated[Path | None, _OUT]
RequiredOut = Annotated[Path, _OUT]


def _options(
    tasks: Annotated[
        str,
        typer.Option(
            "--tasks",
            "--task",
            autocompletion=complete_task,
            help="Tasks that grace tasks lists, or yours: module:Class.",
        ),
    ] = "digits",
    workers: Annotated[
        str | None, typer.Option("--workers", "-w", help="Numbers of worker processes: 2,4; 4 by default.")
    ] = None,
    links: Annotated[
        str,
        typer.Option(
            "--links",
            "--link",
            autocompletion=complete_link,
            help="none, 100mbit, 1gbit, 10gbit, 25gbit, or any such speed.",
        ),
    ] = "none",
    seeds: Annotated[
        str, typer.Option("--seeds", "--seed", help="Seeds of the model, the data's order and the method: 0,1,2.")
    ] = "0",
    rounds: Annotated[
        int,
        typer.Option(
            "--rounds", min=1, help="Run all methods once, then all again, so often; ratios are within a round."
        ),
    ] = 1,
    toolkits: Annotated[
        str, typer.Option("--toolkits", "--toolkit", help="torch, tensorflow, jax; with commas between.")
    ] = TORCH,
    steps: Annotated[int | None, typer.Option("--steps", help="Length in steps; by default the task's.")] = None,
    epochs: Annotated[float | None, typer.Option("--epochs", help="Length in epochs instead.")] = None,
    evaluations: Annotated[int, typer.Option("--evaluations", help="How many times the test set is evaluated.")] = 15,
    batch: Annotated[int | None, typer.Option("--batch", help="Samples of one worker and step.")] = None,
    lr: Annotated[
        float | None, typer.Option("--lr", help="Peak learning rate, instead of what suits task and method.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", help="Folder of the official files, or synthetic: random batches; embedded data without."
        ),
    ] = None,
    granularity: Annotated[
        str, typer.Option("--granularity", help="What is compressed as one tensor: parameter, bucket or model.")
    ] = "parameter",
    latency: AddedLatency = "0",
    machines: Annotated[
        int | None,
        typer.Option(
            "--machines", min=1, help="Machines that the workers share; a link for each. By default one each."
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, max=1024, help="Of each worker; by default its share of the cores."),
    ] = None,
    device: Annotated[
        str, typer.Option("--device", help="cpu, or cuda: each worker on the GPU of its number; fewer are shared.")
    ] = "cpu",
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds without progress that end a run.")] = 300.0,
    launcher: Annotated[
        str,
        typer.Option("--launcher", help="auto (this machine, or the torchrun or Slurm job one is in), local, or ray."),
    ] = "auto",
    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", callback=folder, help="Folder for TensorBoard.")
    ] = None,
    wandb: Annotated[str | None, typer.Option("--wandb", help="Project at Weights & Biases.")] = None,
    as_json: Json = False,
) -> None:
    """The options that all commands here have: what is run, and how. Plural options are lists with commas between."""


def _with_options(command: C) -> C:
    """Gives a command the common options; it gets them as keyword arguments."""
    own, shared = (inspect.signature(function, eval_str=True).parameters.values() for function in (command, _options))
    both = [parameter for parameter in own if parameter.kind is not parameter.VAR_KEYWORD] + list(shared)
    both.sort(key=lambda parameter: parameter.default is not parameter.empty)
    command.__signature__ = inspect.Signature(both)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in both}
    return command


@_with_options
def train(methods: Methods, out: Out = None, **options: Any) -> None:
    """Train a task with a method, in real worker processes.

    Lists give every combination; grace bench train adds baselines, and grace compare what a comparison needs.

    Example: [bold]grace train --task digits --method topk:ratio=0.01 --workers 4[/]
    """
    runs = _sweep(_plan(parse_methods(methods), options), out, options)
    documents = [run.document for run in runs]
    places = {(document.task, document.toolkit, document.workers, document.link) for document in documents}
    view = tables.comparison(documents) if len(places) == 1 else tables.sweep(documents)
    written = "" if out is None else f"In {out}: runs/, runs.csv, curves.csv"
    _tell(runs, view, options, written, None if len(places) == 1 else WIDE)
    _tell_failures(runs, "runs")


@_with_options
def compare_(methods: Methods, out: RequiredOut, **options: Any) -> None:
    """Compare methods on a task: a table, CSV and JSON, and figures. The method none is always among them.

    A method that cannot use the task's learning rate or momentum gets its own, and the table says so. With several seeds the
    table has medians and ranges, and says what is clearly the best.

    Example: [bold]grace compare --task digits --methods bf16,topk:ratio=0.01,powersgd:rank=2 --workers 4 --out demo[/]
    """
    renderer()  # now, not after minutes of training
    plan = _plan(add_baseline(parse_methods(methods)), options)
    for what, values in (
        ("task", plan.tasks), ("number of workers", plan.workers), ("link", plan.links), ("toolkit", plan.toolkits)
    ):  # fmt: skip
        if len(values) > 1:
            several = ", ".join(map(str, values))
            raise ConfigurationError(f"grace compare takes one {what}, not {several}; grace bench train takes several")
    runs = _sweep(plan, out, options)
    results = [run.document for run in runs if isinstance(run.document, Result)]
    drawn = draw_comparison(results, out) if results else []
    documents = [run.document for run in runs]
    predicted = over_slower_links(documents)
    view = Group(*([] if predicted is None else [predicted]), tables.comparison(documents))
    figures = ", comparison.png, comparison.svg" if drawn else ""
    _tell(runs, view, options, f"In {out}: runs/, runs.csv, curves.csv{figures}")
    _tell_failures(runs, "runs")


@_with_options
def bench_train(
    methods: Methods,
    out: RequiredOut,
    baselines: Annotated[
        str, typer.Option("--baselines", help="What runs beside the methods; '' for nothing.")
    ] = ",".join(BASELINES),
    **options: Any,
) -> None:
    """Train tasks with methods over links: every combination, and the baselines, one result file each.

    Run the same command again to go on where it stopped. A run that fails is recorded, and the others go on.

    Example: [bold]grace bench train --tasks lstm_small --methods topk:ratio=0.01,qsgd --links 1gbit --out results[/]
    """
    beside = parse_names(baselines, "--baselines") if baselines else ()
    runs = _sweep(_plan(parse_methods(methods), options, beside), out, options)
    view = tables.sweep([run.document for run in runs])
    _tell(runs, view, options, f"In {out}: runs/, runs.csv, curves.csv. Next: grace report {out}", WIDE)
    _tell_failures(runs, "runs", ". The same command tries them again")


def _plan(methods: Sequence[str], options: dict[str, Any], baselines: Sequence[str] = ()) -> SweepPlan:
    """The plan of what to run, not yet checked. In a job that has workers already, their number is the default."""
    if options["launcher"] not in _LAUNCHERS:
        raise ConfigurationError(f"launcher {options['launcher']!r} is unknown; legal: {', '.join(_LAUNCHERS)}")
    if options["workers"] is None:
        here = _find_place(options)
        counts = [4 if here is None else here.world]
    else:
        counts = parse_numbers(options["workers"], "--workers")
    tasks, links, toolkits = (parse_names(options[name], f"--{name}") for name in ("tasks", "links", "toolkits"))
    if options["machines"] is not None and set(links) == {"none"}:
        raise ConfigurationError("--machines: machines share a link each; add --link 1gbit, or leave --machines out")
    common = {name: options[name] for name in _COMMON}
    common |= {"latency": seconds_of(options["latency"]), "cores": options["threads"]}
    seeds = parse_numbers(options["seeds"], "--seeds")
    return SweepPlan(tasks, methods, counts, links, seeds, baselines, toolkits, options["rounds"], common)


def _find_place(options: dict[str, Any]) -> Place | None:
    return find_place() if options["launcher"] == "auto" else None


def _sweep(plan: SweepPlan, out: Path | None, options: dict[str, Any]) -> list[RunOutcome]:
    """Runs the plan: in new workers, in those of the job that this process belongs to, or on a Ray cluster."""
    if (here := _find_place(options)) is not None:
        workers = ExternalWorkers(here, options["timeout"])
        if here.rank:
            workers.run_others()
            raise typer.Exit  # rank 0 does the rest
        with workers.end_together():
            return _sweep_with(workers.run_rank0, workers.check, plan, out, options)
    if options["launcher"] == "ray":
        from grace_bench.workers.ray_cluster import Cluster

        cluster = Cluster()
        return _sweep_with(cluster.launch, cluster.check, plan, out, options)
    return _sweep_with(launch, check_memory, plan, out, options)


def _sweep_with(
    launcher: Launcher,
    check_workers: Callable[[Sequence[RunConfig]], None],
    plan: SweepPlan,
    out: Path | None,
    options: dict[str, Any],
) -> list[RunOutcome]:
    configs = plan.runs()
    check(configs)
    check_workers(configs)
    warn_if_busy()
    trackers: list[Tracker] = []
    if options["tensorboard"] is not None:
        trackers.append(TensorBoard(options["tensorboard"]))
    if options["wandb"] is not None:
        trackers.append(Wandb(options["wandb"], out or Path()))
    with SweepReporter(Console(stderr=True), len(configs), bar=not options["as_json"]) as reporter:
        return sweep(configs, out, reporter, command=list(sys.argv), launcher=launcher, trackers=trackers)


def _tell(
    runs: Sequence[RunOutcome], view: RenderableType, options: dict[str, Any], written: str, width: int | None = None
) -> None:
    if options["as_json"]:
        write_json([run.document for run in runs])
        return
    show(view, width)
    if written:
        typer.echo(written, err=True)


def _tell_failures(runs: Sequence[RunOutcome], what: str, hint: str = "") -> None:
    failed = [run for run in runs if not run.ok]
    if len(runs) == 1 and isinstance(runs[0].document, Failure):
        raise GraceError(runs[0].document.error + hint)
    if failed:
        names = ", ".join(dict.fromkeys(run.config.method for run in failed))
        raise GraceError(f"{len(failed)} of {len(runs)} {what} failed: {names}{hint}")
