"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grace.errors import ConfigurationError
from grace.registry import methods, split_methods
from grace.registry.discovery import load
from grace_bench.files import require_folder
from grace_command.shell import LINKS, complete_last

Json = Annotated[bool, typer.Option("--json", metavar="", help="Write JSON, and nothing else, to stdout.")]

Speeds = Annotated[str, typer.Option("--links", "--link", help="Speeds, with commas between.")]
OneWay = Annotated[str, typer.Option("--latency", help="One way, from one worker to another: 0.1ms.")]
AddedLatency = Annotated[str, typer.Option("--latency", help="Added to every link: 0.1ms, 50us. Needs netem.")]
Cores = Annotated[float, typer.Option("--cores", min=0.1, help="Cores of each worker.")]


def trust(specs: list[str] | None) -> list[str] | None:
    """Names users' own methods and tasks in this process, so that the files of this command may name them.

    Raises:
        ConfigurationError: one cannot be loaded.
    """
    for spec in specs or ():
        load(spec, "method or task")
    return specs


Trust = Annotated[
    list[str] | None,
    typer.Option(
        "--trust", metavar="FILE.py:CLASS", callback=trust,
        help="Your own method or task, which the files may name: its code runs. Once for each.",
    ),
]  # fmt: skip
WIDE = 240  # columns of a wide table, where there is no terminal


def complete_method(begun: str) -> list[str]:
    """Completes, for the shell, the last method of a list with commas between."""
    return complete_last(begun, methods())


def complete_task(begun: str) -> list[str]:
    """The same for tasks."""
    from grace_bench.tasks import TASKS

    return complete_last(begun, TASKS)


def complete_link(begun: str) -> list[str]:
    """The same for links."""
    return complete_last(begun, LINKS)


def folder(path: Path | None) -> Path | None:
    """An ``--out`` that can be written to: this is checked before anything takes minutes."""
    if path is not None:
        require_folder(path)
    return path


def parse_methods(text: str) -> list[str]:
    """The methods of ``"topk:ratio=0.01,qsgd"``.

    Raises:
        ConfigurationError: it names none.
    """
    names = [name for name in split_methods(text) if name]
    if not names:
        raise ConfigurationError(f"methods {text!r} names none; legal: methods with commas between, such as topk,qsgd")
    return names


def parse_names(text: str, what: str) -> list[str]:
    """Names with commas between, each once.

    Raises:
        ConfigurationError: there is none.
    """
    names = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise ConfigurationError(f"{what} {text!r} names none; legal: one or more, with commas between")
    return names


def parse_numbers(text: str, what: str) -> list[int]:
    """Whole numbers with commas between.

    Raises:
        ConfigurationError: there is none, or one is not a whole number.
    """
    names = parse_names(text, what)
    try:
        return [int(name) for name in names]
    except ValueError as error:
        raise ConfigurationError(f"{what} {text!r}: expected whole numbers with commas between") from error
