"""``python -m tests.fuzz``: the long run. ``make fuzz`` runs it behind the native decoders' own, which has sanitizers."""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.fuzz import record
from tests.fuzz.targets import Outcome, fuzz, names

Work = tuple[str, str, int, int]  # target, backend, payloads, seed


def main(
    payloads: Annotated[int, typer.Option(help="Damaged payloads for each decoder.", min=1)] = 10_000_000,
    exchanges: Annotated[int, typer.Option(help="Damaged answers for each method's exchanges.", min=1)] = 20_000,
    seconds: Annotated[float, typer.Option(help="Processor seconds for one target, at most.")] = 3600.0,
    only: Annotated[str, typer.Option(help="Targets whose name contains this.")] = "",
    jobs: Annotated[int, typer.Option(help="Processes.", min=1)] = multiprocessing.cpu_count(),
    seed: Annotated[int, typer.Option(help="What is drawn follows from it.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Write the outcomes there, as JSON.")] = None,
    share: Annotated[
        float,
        typer.Option("--record", help="Minutes for the decoders least tried so far, added to the record; 0: off."),
    ] = 0,
) -> None:
    """Damage what decoders read, and whole exchanges. Ends with status 1 if anything but a refusal came of it.

    Example: python -m tests.fuzz --payloads 100000 --only topk
    """
    chosen = [(target, backend) for target, backend in names() if only in target]
    if not chosen:
        sys.exit(f"no target's name contains {only!r}")
    tried = record.read()
    work: list[Work] = (
        record.choose(chosen, tried)
        if share
        else [(*target, payloads if target[0].startswith("decoder") else exchanges, seed) for target in chosen]
    )
    console, outcomes = Console(stderr=True), list[Outcome]()
    if share:  # every decoder its part of the time; what is left goes to the next of the list
        seconds = min(seconds, max(1.0, 60 * share * jobs / max(1, len(work))))
    for outcome in track(_run(work, seconds, jobs, 60 * share), "fuzzing", total=len(work), console=console):
        outcomes.append(outcome)
        if outcome.failure:
            console.print(f"[bold]{outcome.target}[/bold] ({outcome.backend}): {outcome.failure}")
        elif share:
            place = record.name(outcome.target, outcome.backend)
            tried[place] = tried.get(place, record.Tried()).plus(outcome)
            record.write(tried)
        if out is not None:
            out.write_text(json.dumps([outcome.as_dict() for outcome in outcomes], indent=1))
    Console().print(_table(outcomes))
    sys.exit(any(outcome.failure for outcome in outcomes))


def _run(work: list[Work], seconds: float, jobs: int, share: float) -> Iterator[Outcome]:
    """Outcomes as they come; with a share of time, in seconds, nothing begins after it."""
    began, left, running = time.monotonic(), iter(work), set[Future[Outcome]]()
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        while True:
            while len(running) < jobs and not (share and time.monotonic() - began > share):
                job = next(left, None)
                if job is None:
                    break
                target, backend, payloads, seed = job
                running.add(pool.submit(fuzz, target, backend, payloads, seconds, seed))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()  # a crash of a process is an error here


def _table(outcomes: list[Outcome]) -> Table:
    table = Table("target", "kernels", "payloads", "refused", "seconds", "findings", title="fuzzing")
    for outcome in sorted(outcomes, key=lambda outcome: (outcome.target, outcome.backend)):
        share = f"{outcome.refused / max(1, outcome.payloads):.0%}"
        counts = (f"{outcome.payloads:,}", share, f"{outcome.seconds:.0f}")
        table.add_row(outcome.target, outcome.backend, *counts, outcome.failure or "none")
    return table


if __name__ == "__main__":
    typer.run(main)
