"""All commands, and how their errors are told: in one line, with a status."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import grace
from grace.bench.codecs.command import codecs
from grace.cli import measure, methods, runs, suite
from grace.cli.report import report
from grace.errors import GraceError

# typer brings a copy of click, or depends on it, by version; its errors are those of either.
_UsageError: Any = typer.BadParameter.__mro__[1]


class _Group(TyperGroup):
    """Errors that Grace raises on purpose are told in a line, without a traceback; so are words that no command takes."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            where = " ".join(["grace", *(error.ctx.command_path.split()[1:] if error.ctx else [])])
            raise _fail(f"{error.format_message().rstrip('.')}; see {where} --help", 2) from error
        except GraceError as error:
            raise _fail(str(error), 1) from error
        except OSError as error:
            if error.filename is None:
                raise  # nothing that a user can mend
            raise _fail(f"{error.filename}: {error.strerror}", 1) from error


def _fail(message: str, status: int) -> typer.Exit:
    typer.echo(f"error: {message}", err=True)
    return typer.Exit(status)


app = typer.Typer(
    cls=_Group, no_args_is_help=True, add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False,
    help="Gradient compression for distributed deep learning.",
)  # fmt: skip
bench = typer.Typer(no_args_is_help=True, help="Benchmarks: sweeps over links, and what Grace itself costs.")
app.add_typer(bench, name="bench")
_COMMANDS: list[Callable[..., None]] = [
    methods.list_, methods.explain, runs.train, runs.compare_, report, methods.verify, measure.doctor,
]  # fmt: skip
_BENCH_COMMANDS: list[Callable[..., None]] = [
    runs.bench_train, suite.smoke, suite.link, suite.predict, codecs, measure.overhead,
]  # fmt: skip
for group, commands in ((app, _COMMANDS), (bench, _BENCH_COMMANDS)):
    for command in commands:
        group.command(command.__name__.removeprefix("bench_").rstrip("_"))(command)


@app.callback(invoke_without_command=True)
def _main(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    if version:
        typer.echo(f"grace {grace.__version__}")
        raise typer.Exit


def run() -> None:
    """The command line, as a program."""
    try:
        app()
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
        sys.exit(130)
