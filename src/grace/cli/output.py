"""What commands write to stdout."""

from __future__ import annotations

from typing import Any

import typer
from rich.console import Console, RenderableType

from grace.bench.results import encode

_WIDTH = 160  # where there is no terminal


def show(view: RenderableType, width: int | None = None, *, soft: bool = False) -> None:
    """On stdout; where there is no terminal, ``width`` columns wide (160 by default), so that nothing is cut.

    ``soft``: lines may be longer.
    """
    console = Console()
    Console(width=None if console.is_terminal else width or _WIDTH, highlight=False, soft_wrap=soft).print(view)


def write_json(document: Any) -> None:
    """A document, and nothing else."""
    typer.echo(encode(document), nl=False)
