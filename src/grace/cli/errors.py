"""Errors of commands: one line on stderr, and a status."""

from __future__ import annotations

import sys
import warnings
from typing import Any, NoReturn

import typer

from grace.compute.backends import slow_note
from grace.errors import GraceError, KernelsWarning
from grace_command import shell
from grace_command.text import describe_os_error

_UsageError: Any = typer.BadParameter.__mro__[1]  # of click, or of typer's copy of it, by version


class _Program:
    """Mixin that reports Grace's own errors, wrong arguments and unusable files in one line, without a traceback; Grace's
    errors say where to read on. Status 2 is wrong use, 1 any other failure.
    """

    def invoke(self, *context: Any) -> Any:
        program: Any = super()
        try:
            return program.invoke(*context)
        except KeyboardInterrupt:
            typer.echo("stopped", err=True)
            raise

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        program: Any = super()
        if not standalone_mode:
            return program.main(*args, standalone_mode=False, **extra)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", KernelsWarning)  # it is reported below, not from inside
                status = program.main(*args, standalone_mode=False, **extra)
        except _UsageError as error:
            where = error.ctx.command_path if error.ctx is not None else "grace"
            if type(error).__name__ == "NoArgsIsHelpError":
                typer.echo(error.ctx.get_help())
                sys.exit(2)
            _end(f"{error.format_message().rstrip('.')}; see {where} --help", 2)
        except GraceError as error:
            _end(f"{error}\nread on: {error.see}", 1)
        except OSError as error:
            if (message := describe_os_error(error)) is None:
                raise
            _end(message, 1)
        if (note := slow_note()) is not None:
            typer.echo(f"note: {note}; grace doctor says more", err=True)
        sys.exit(status if isinstance(status, int) else 0)


class CommandGroup(_Program, shell.Group):
    """Several commands."""


class Command(_Program, shell.Command):
    """A program of one command."""


def _end(message: str, status: int) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    sys.exit(status)
