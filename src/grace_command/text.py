"""Numbers and tables for a terminal."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_WIDTH = 160  # where there is no terminal


def show(view: RenderableType, width: int | None = None, *, soft: bool = False) -> None:
    """Prints on stdout; without a terminal, ``width`` columns wide (160 by default), so that nothing is cut.

    ``soft``: lines may be longer.
    """
    from rich.console import Console

    console = Console()
    Console(width=None if console.is_terminal else width or _WIDTH, highlight=False, soft_wrap=soft).print(view)


def amount(size: float | None) -> str:
    """Bytes for people, in powers of 1,000, as network speeds are: ``114 kB``."""
    if size is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5 or unit == "GB":
            digits = 0 if unit == "B" or size >= 99.95 else 1 if size >= 9.995 else 2
            return f"{size:.{digits}f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")


def number(value: float | None, digits: int = 1) -> str:
    """A number with ``digits`` digits; ``-`` for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def plural(count: int | None, noun: str) -> str:
    """``1 thread``, ``2 threads``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def share(relative: float | None) -> str:
    """A volume relative to another: ``12.1 %``."""
    if relative is None:
        return "-"
    percent = 100 * relative
    if 99.95 <= percent < 100.05 and percent != 100:
        return f"{percent:.2f} %"  # so that a little more than all does not show as all
    return f"{percent:,.0f} %" if percent >= 99.95 else f"{percent:.3g} %"


def plain_table(title: str | None = None, headings: Sequence[str] = (), *, left: int = 1) -> Table:
    """A table without lines; the first columns are aligned left, numbers right."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index < left else "right")
    return table


def describe_os_error(error: OSError) -> str | None:
    """A line about an unusable file or a full disk; None if it is nothing that a user can fix."""
    if error.errno == errno.ENOSPC:
        where = f"{error.filename}: " if error.filename is not None else ""
        return f"{where}{error.strerror}; free some space and run the command again"
    return None if error.filename is None else f"{error.filename}: {error.strerror}"
