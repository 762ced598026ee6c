"""How a command's errors are told: one line on stderr, and a status."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from grace.errors import GraceError

_UsageError: Any = typer.BadParameter.__mro__[1]  # of click, or of typer's copy of it, by version


class _Program:
    """Mixin: errors that Grace raises on purpose, words that no command takes, and files that cannot be used, are told in
    a line, without a traceback. Status 2 is a wrong use, 1 what went wrong.
    """

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        program: Any = super()
        if not standalone_mode:
            return program.main(*args, standalone_mode=False, **extra)
        try:
            status = program.main(*args, standalone_mode=False, **extra)
        except _UsageError as error:
            where = error.ctx.command_path if error.ctx is not None else "grace"
            if type(error).__name__ == "NoArgsIsHelpError":
                typer.echo(error.ctx.get_help())
                sys.exit(2)
            _end(f"{error.format_message().rstrip('.')}; see {where} --help", 2)
        except GraceError as error:
            _end(str(error), 1)
        except OSError as error:
            if error.filename is None:
                raise  # nothing that a user can mend
            _end(f"{error.filename}: {error.strerror}", 1)
        sys.exit(status if isinstance(status, int) else 0)


class Group(_Program, TyperGroup):
    """Several commands."""


class Command(_Program, TyperCommand):
    """A program of one command."""


def _end(message: str, status: int) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    sys.exit(status)
