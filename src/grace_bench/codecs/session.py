"""A bench as a person runs it: an estimate first, progress on stderr, a file that is kept up to date, and it can be stopped
at any time.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console

from grace.errors import GraceError
from grace_bench.codecs.bench import Bench
from grace_bench.files import write_atomically
from grace_bench.report.progress import Bar, duration
from grace_bench.workers.local import terminable

_LINE_SECONDS = 30.0  # between lines where there is no terminal
Stop: TypeAlias = KeyboardInterrupt | SystemExit


def run(bench: Bench, out: Path | None, program: str) -> tuple[dict[str, Any], Stop | None]:
    """The document, and what stopped the bench early, if anything did.

    Args:
        bench: what is measured.
        out: folder in which codecs.json is written again after each method.
        program: what was called, for the document.

    Raises:
        KeyboardInterrupt, SystemExit: before anything was measured.
    """
    console, plan = Console(stderr=True, highlight=False), bench.plan
    console.print(f"measuring {len(plan.methods)} methods: about {duration(plan.seconds())}")
    bar, document = Bar(console), dict[str, Any]()
    start = last = time.monotonic()

    def keep(measured: dict[str, Any]) -> None:
        document.update(measured)
        if out is not None:
            write_document(document, out)

    def tell(done: float, total: float, what: str) -> None:
        nonlocal last
        now = time.monotonic()
        left = (total - done) * ((now - start) / done if done else 1.0)
        note = f"{100 * done / total:.0f} %, about {duration(left)} left"
        bar.draw(done, total, what, note)
        if not console.is_terminal and now - last >= _LINE_SECONDS:
            console.print(f"{note}; next: {what}")
            last = now

    try:
        with terminable(), bar:
            document = bench.measure(command=[*program.split(), *sys.argv[1:]], progress=tell, keep=keep)
    except (KeyboardInterrupt, SystemExit) as stop:
        if not document:
            raise
        return document, stop
    return document, None


def write_document(document: dict[str, Any], out: Path) -> None:
    """Writes ``codecs.json``."""
    write_atomically(out / "codecs.json", json.dumps(document, indent=1, allow_nan=False) + "\n")


def judge(document: dict[str, Any], stop: Stop | None) -> int:
    """The exit status: of a bench that was stopped, which is reported on stderr; 0 if it finished.

    Raises:
        GraceError: a method failed.
    """
    if stop is not None:
        text = f"error: stopped after {duration(document['seconds'])}: what is missing was not measured"
        Console(stderr=True, highlight=False, soft_wrap=True).print(text)
        return stop.code if isinstance(stop, SystemExit) and isinstance(stop.code, int) else 130
    if failed := document["failed"]:
        names = ", ".join(sorted({failure["method"] for failure in failed}))
        raise GraceError(f"failed: {names}; the first: {failed[0]['error']}")
    return 0
