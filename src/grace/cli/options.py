"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grace.bench.scratch import require_folder

Json = Annotated[bool, typer.Option("--json", help="Write JSON, and nothing else, to stdout.")]


def folder(path: Path | None) -> Path | None:
    """An ``--out`` that can be written to: this is found out before anything takes minutes."""
    if path is not None:
        require_folder(path)
    return path
