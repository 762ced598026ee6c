"""``python -m tests.fuzz``: the long run. ``make fuzz`` runs it behind the native decoders' own, which has sanitizers."""

from __future__ import annotations

import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.fuzz.targets import Outcome, fuzz, names


def main(
    payloads: Annotated[int, typer.Option(help="Damaged payloads for each decoder.", min=1)] = 10_000_000,
    exchanges: Annotated[int, typer.Option(help="Damaged answers for each method's exchanges.", min=1)] = 20_000,
    seconds: Annotated[float, typer.Option(help="Processor seconds for one target, at most.")] = 3600.0,
    only: Annotated[str, typer.Option(help="Targets whose name contains this.")] = "",
    jobs: Annotated[int, typer.Option(help="Processes.", min=1)] = multiprocessing.cpu_count(),
    seed: Annotated[int, typer.Option(help="What is drawn follows from it.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Write the outcomes there, as JSON.")] = None,
) -> None:
    """Damage what decoders read, and whole exchanges. Ends with status 1 if anything but a refusal came of it.

    Example: python -m tests.fuzz --payloads 100000 --only topk
    """
    chosen = [(target, backend) for target, backend in names() if only in target]
    if not chosen:
        sys.exit(f"no target's name contains {only!r}")
    console, outcomes = Console(stderr=True), list[Outcome]()
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        work = [
            pool.submit(fuzz, target, backend, payloads if target.startswith("decoder") else exchanges, seconds, seed)
            for target, backend in chosen
        ]
        for done in track(as_completed(work), "fuzzing", total=len(work), console=console):
            outcomes.append(done.result())  # a crash of a process is an error here
            if outcomes[-1].failure:
                console.print(f"[bold]{outcomes[-1].target}[/bold] ({outcomes[-1].backend}): {outcomes[-1].failure}")
            if out is not None:
                out.write_text(json.dumps([one.as_dict() for one in outcomes], indent=1))
    Console().print(_table(outcomes))
    sys.exit(any(one.failure for one in outcomes))


def _table(outcomes: list[Outcome]) -> Table:
    table = Table("target", "kernels", "payloads", "refused", "seconds", "findings", title="fuzzing")
    for one in sorted(outcomes, key=lambda one: (one.target, one.backend)):
        share = f"{one.refused / max(1, one.payloads):.0%}"
        table.add_row(one.target, one.backend, f"{one.payloads:,}", share, f"{one.seconds:.0f}", one.failure or "none")
    return table


if __name__ == "__main__":
    typer.run(main)
