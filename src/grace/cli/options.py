"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grace.bench.scratch import require_folder
from grace.errors import ConfigurationError
from grace.registry import split_methods

Json = Annotated[bool, typer.Option("--json", help="Write JSON, and nothing else, to stdout.")]


def folder(path: Path | None) -> Path | None:
    """An ``--out`` that can be written to: this is found out before anything takes minutes."""
    if path is not None:
        require_folder(path)
    return path


def parse_methods(text: str) -> list[str]:
    """The methods of ``"topk:ratio=0.01,qsgd"``.

    Raises:
        ConfigurationError: it names none.
    """
    found = [name for name in split_methods(text) if name]
    if not found:
        raise ConfigurationError(f"methods {text!r} names none; legal: methods with commas between, such as topk,qsgd")
    return found


def parse_names(text: str, what: str) -> list[str]:
    """Names with commas between, each once.

    Raises:
        ConfigurationError: there is none.
    """
    found = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise ConfigurationError(f"{what} {text!r} names none; legal: one or more, with commas between")
    return found


def parse_numbers(text: str, what: str) -> list[int]:
    """Whole numbers with commas between.

    Raises:
        ConfigurationError: there is none, or one is no whole number.
    """
    names = parse_names(text, what)
    try:
        return [int(name) for name in names]
    except ValueError as error:
        raise ConfigurationError(f"{what} {text!r}: expected whole numbers with commas between") from error
