"""The commands of the survey: ``grace survey``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from grace.cli.options import Json, Trust, folder
from grace.cli.output import show, write_json
from grace.errors import ConfigurationError, GraceError


def survey_run(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", exists=True, dir_okay=False, help="The plan, a TOML file.")],
    out: Annotated[
        Path, typer.Option("--out", callback=folder, help="Folder of runs; what is in it does not run again.")
    ],
    shard: Annotated[str, typer.Option("--shard", help="Only part I of N, from 1/N to N/N.")] = "1/1",
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=1024, help="Runs side by side, one thread each.")] = 1,
    idle: Annotated[bool, typer.Option("--idle/--no-idle", help="Take only what no other process wants.")] = True,
    archive: Annotated[
        Path | None,
        typer.Option("--archive", exists=True, dir_okay=False, help="An archive; what is in it does not run."),
    ] = None,
    trust: Trust = None,
    as_json: Json = False,
) -> None:
    """Run a plan of the survey: methods x tasks x seeds, all workers of a run in one process.

    Quality does not depend on the machine's load: it may run beside other work. Stop it at any time; the same command goes
    on with the runs that are missing. A run that diverges is a result.

    Example: [bold]grace survey run docs/survey/plan.toml --out survey --shard 2/5 --archive docs/survey/archive.parquet[/]
    """
    import torch

    from grace_bench.survey import plan as plans
    from grace_bench.survey.archive import read_archive
    from grace_bench.survey.run import Done, run_all, yield_to_others

    runs = plans.shard(plans.read_plan(plan), shard)
    known = [] if archive is None else read_archive(archive)
    if idle:
        yield_to_others()
    torch.set_num_threads(1)
    began, ended, here, failed = time.monotonic(), 0, 0, list[str]()

    def tell(done: Done) -> None:
        nonlocal ended, here
        ended += 1
        name = plans.describe(done.run)
        if done.row is None:
            failed.append(name)
            typer.echo(f"[{ended}/{len(runs)}] {name}: failed: {done.error}", err=True)
            return
        if not done.seconds:
            return
        here += 1
        row = done.row
        end = f"diverged at step {row.diverged}" if row.diverged is not None else f"{row.metric} {row.final:.4g}"
        left = (time.monotonic() - began) / (here + len(failed)) * (len(runs) - ended) / 60
        typer.echo(f"[{ended}/{len(runs)}] {name}: {end}; {left:.0f} min left if the rest take as long", err=True)

    rows = run_all(runs, out, tell, jobs, known=known)
    if as_json:
        write_json(rows)
    else:
        where = out / "runs" if archive is None else f"{out / 'runs'} or {archive}"
        typer.echo(f"{len(rows)} of {len(runs)} runs in {where}")
    if failed:
        raise GraceError(
            f"{len(failed)} of {len(runs)} runs failed: {'; '.join(failed)}. The same command tries them again"
        )


def survey_plan(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", exists=True, dir_okay=False, help="The plan, a TOML file.")],
    archive: Annotated[
        Path | None, typer.Option("--archive", exists=True, dir_okay=False, help="What is there, and how long it took.")
    ] = None,
    shard: Annotated[str, typer.Option("--shard", help="Only part I of N, from 1/N to N/N.")] = "1/1",
    trust: Trust = None,
    as_json: Json = False,
) -> None:
    """Show what a plan holds: how many runs, what an archive has of them, and how long the rest will take.

    Example: [bold]grace survey plan docs/survey/plan.toml --archive docs/survey/archive.parquet[/]
    """
    from grace_bench.survey import plan as plans
    from grace_bench.survey.archive import read_archive
    from grace_bench.survey.estimate import split

    parts = split(plans.shard(plans.read_plan(plan), shard), [] if archive is None else read_archive(archive))
    if as_json:
        write_json(parts)
        return
    for part in parts:
        left = "?" if part.hours is None else f"{part.hours:.2f}"
        typer.echo(
            f"{part.protocol}, {part.task}: {part.there} of {part.runs} runs there, {left} hours of one core left"
        )
    known = [part.hours for part in parts if part.hours is not None]
    unknown = "" if len(known) == len(parts) else f", and {len(parts) - len(known)} parts of unknown length"
    runs, there = sum(part.runs for part in parts), sum(part.there for part in parts)
    typer.echo(f"in all: {there} of {runs} runs there, {sum(known):.2f} hours left{unknown}")


def survey_merge(
    parts: Annotated[list[Path], typer.Argument(metavar="PART...", exists=True, help="Archives, or folders of runs.")],
    out: Annotated[Path, typer.Option("--out", help="The archive that is written, a Parquet file.")],
    trust: Trust = None,
    as_json: Json = False,
) -> None:
    """Merge archives, or the runs of shards, into one archive, each run once.

    If two parts say different things of one run, or do not fit together, nothing is written.

    Example: [bold]grace survey merge shard-1 shard-2 archive.parquet --out all.parquet[/]
    """
    from grace_bench.survey.archive import join

    total = join(parts, out)
    if as_json:
        write_json({"archive": str(out), "rows": total})
    else:
        typer.echo(f"{out}: {total} runs of {len(parts)} parts")


def survey_steps(
    archive: Annotated[Path, typer.Argument(metavar="ARCHIVE", exists=True, dir_okay=False, help="The archive.")],
    out: Annotated[Path, typer.Option("--out", help="The table, a JSON file; an older one is replaced.")],
    samples: Annotated[
        int, typer.Option("--samples", min=1, max=1000, help="Exchanges of a method that are timed.")
    ] = 3,
    trust: Trust = None,
    as_json: Json = False,
) -> None:
    """Measure a step of every task and method of an archive, on this machine: what the times of the survey rest on.

    For each task the step without communication, and for each method what it encodes, sends and decodes; the link model plays
    both over 100 Mbit/s, 1 and 10 Gbit/s. The machine should be idle; the table says so where it is not.

    Example: [bold]grace survey steps docs/survey/archive.parquet --out docs/survey/steps.json[/]
    """
    from grace_bench.advise.steps import measure
    from grace_bench.files import write_atomically
    from grace_bench.runs.results import encode
    from grace_bench.survey.archive import read_archive

    table = measure(read_archive(archive), lambda text: typer.echo(text, err=True), samples)
    write_atomically(out, encode(table))
    if as_json:
        write_json(table)
        return
    methods = sum(len(task.methods) for task in table.tasks.values())
    busy = "; the machine did other work meanwhile: nothing will be concluded from it" if table.busy else ""
    typer.echo(f"{out}: steps of {len(table.tasks)} tasks, {methods} of task and method{busy}")


def survey_report(
    archive: Annotated[Path, typer.Argument(metavar="ARCHIVE", exists=True, dir_okay=False, help="The archive.")],
    out: Annotated[Path, typer.Option("--out", help="The page, an HTML file.")] = Path("survey.html"),
    steps: Annotated[
        Path | None,
        typer.Option("--steps", exists=True, dir_okay=False, help="The table of grace survey steps, for times."),
    ] = None,
    trust: Trust = None,
    as_json: Json = False,
) -> None:
    """Draw an archive: one interactive HTML page that needs no network.

    Example: [bold]grace survey report docs/survey/archive.parquet --out survey.html[/]
    """
    from grace_bench.report.archive import write_page
    from grace_bench.survey.archive import read_archive
    from grace_bench.survey.steps import read_steps

    rows = read_archive(archive)
    size = write_page(rows, archive.name, out, None if steps is None else read_steps(steps))
    if as_json:
        write_json({"page": str(out), "bytes": size, "rows": len(rows)})
    else:
        typer.echo(f"{out}: {len(rows)} runs, {size / 1e6:.1f} MB")


def survey_add(
    runs: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that grace survey run wrote.")],
    archive: Annotated[Path, typer.Option("--archive", help="The archive, a Parquet file; made if it is not there.")],
    trust: Trust = None,
    as_json: Json = False,
) -> None:
    """Check runs and append them to an archive, each once: those of a shard, or of anyone.

    Checked are the schema, its version, the versions of the packages, the digest of the data, the size of the model, and
    whether the bytes are those that the method sends. If anything is wrong nothing is written.

    Example: [bold]grace survey add survey --archive archive.parquet[/]
    """
    from grace_bench.survey.archive import add

    new, total = add(runs, archive)
    if as_json:
        write_json({"archive": str(archive), "added": new, "rows": total})
    else:
        typer.echo(f"{archive}: {new} runs added, {total} in all")


def survey_frontier(
    parts: Annotated[list[Path], typer.Argument(metavar="PART...", exists=True, help="Archives, or folders of runs.")],
    protocol: Annotated[str | None, typer.Option("--protocol", help="Only runs of this protocol.")] = None,
    trust: Trust = None,
    as_json: Json = False,
) -> None:
    """Show what each method costs beside bf16: quality after as many steps, steps to bf16's quality, and bytes.

    A star marks the frontier: nothing that sends as little ends better. Steps are a multiple of bf16's own, with the range
    over seeds where there are three; a method that ended short of bf16's quality says so. Below the table of a protocol
    "screen", or one that begins so: what another method beats on both axes by a wide margin, and needs no longer runs.

    Example: [bold]grace survey frontier docs/survey/archive.parquet --protocol survey[/]
    """
    from grace_bench.survey.archive import gather_rows
    from grace_bench.survey.frontier import SCREEN, find_frontier, find_hopeless, table_of

    rows = gather_rows(parts)
    frontier = {task: places for task, places in find_frontier(rows).items() if protocol is None or task[0] == protocol}
    if not frontier:
        names, where = (
            sorted({row.protocol for row in rows}),
            "" if protocol is None else f" under protocol {protocol!r}",
        )
        raise ConfigurationError(
            f"no runs of bf16 to compare with{where}, on embedded data and the processor; the protocols here: "
            f"{', '.join(names)}"
        )
    hopeless = {task: find_hopeless(of) if task[0].startswith(SCREEN) else [] for task, of in frontier.items()}
    if as_json:
        write_json(
            [
                {"protocol": task[0], "task": task[1], "steps": task[2], "methods": of, "hopeless": hopeless[task]}
                for task, of in frontier.items()
            ]
        )
        return
    for task, of in frontier.items():
        show(table_of(task, of))
        for beaten in hopeless[task]:
            typer.echo(f"hopeless: {beaten}")
