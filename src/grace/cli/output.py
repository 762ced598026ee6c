"""Output of commands to stdout."""

from __future__ import annotations

from typing import Any

import typer

from grace_bench import machine
from grace_bench.runs.results import encode
from grace_command.text import show as show


def warn_if_busy() -> None:
    """Warns on stderr, before a command measures, that times mean little if the machine is busy."""
    if (note := machine.busy_note()) is not None:
        typer.echo(note, err=True)


def write_json(document: Any) -> None:
    """Writes a document, and nothing else."""
    typer.echo(encode(document), nl=False)
