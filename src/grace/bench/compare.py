"""Runs several methods on one task, one after the other, each in processes of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from grace.bench.config import RunConfig
from grace.bench.launch import RunError, launch_all
from grace.bench.record import file_name
from grace.bench.results import Result, encode
from grace.bench.scratch import write_atomically
from grace.bench.table import curves_csv, table_csv
from grace.registry import method, split_methods

SCHEMA, VERSION = "grace.comparison", 1
BASELINE = "none"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one run: a result, or the error that ended it."""

    method: str
    result: Result | None = None
    error: str | None = None


def with_baseline(text: str) -> list[str]:
    """The methods of ``"topk:ratio=0.01,qsgd"``, each once, the uncompressed baseline first.

    Raises:
        UnknownNameError, ConfigurationError: one of them is no method.
    """
    kept: dict[str, str] = {}
    for spec in [BASELINE, *split_methods(text)]:
        kept.setdefault(repr(method(spec)), spec)
    return list(kept.values())


def compare(
    config: RunConfig,
    methods: Sequence[str],
    out: Path,
    *,
    on_start: Callable[[str], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    on_end: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Runs ``config`` with each method. A method that fails is recorded, and the others go on.

    Writes ``runs/*.json`` (each as it ends), ``results.json``, ``runs.csv`` and ``curves.csv`` into ``out``.
    """
    configs = [dataclasses.replace(config, method=spec) for spec in methods]
    outcomes: list[Outcome] = []

    def start() -> None:
        if on_start is not None and len(outcomes) < len(methods):
            on_start(methods[len(outcomes)])

    def progress(run: int, done: int, steps: int) -> None:
        if on_progress is not None and run == len(outcomes):
            on_progress(done, steps)

    start()
    with contextlib.closing(launch_all(configs, on_progress=progress)) as results:
        for found, one in zip(results, configs, strict=True):
            if isinstance(found, RunError):
                outcome = Outcome(one.method, error=str(found))
            else:
                outcome = Outcome(one.method, result=found)
                write_atomically(out / "runs" / file_name(one), encode(found))
            outcomes.append(outcome)
            if on_end is not None:
                on_end(outcome)
            write(outcomes, out)
            start()
    return outcomes


def document(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The comparison as one document."""
    failed = [{"method": outcome.method, "error": outcome.error} for outcome in outcomes if outcome.error is not None]
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "results": [msgspec.to_builtins(one) for one in succeeded(outcomes)],
        "failed": failed,
    }


def succeeded(outcomes: Sequence[Outcome]) -> list[Result]:
    """The results that there are."""
    return [outcome.result for outcome in outcomes if outcome.result is not None]


def write(outcomes: Sequence[Outcome], out: Path) -> None:
    """The tables of what has ended so far."""
    write_atomically(out / "results.json", json.dumps(document(outcomes), indent=1, allow_nan=False) + "\n")
    write_atomically(out / "runs.csv", table_csv(succeeded(outcomes)))
    write_atomically(out / "curves.csv", curves_csv(succeeded(outcomes)))
