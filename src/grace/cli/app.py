"""All commands."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

import grace
from grace.cli import runs, suite
from grace.cli.advise import advise
from grace.cli.codecs import codecs
from grace.cli.doctor import doctor
from grace.cli.errors import CommandGroup
from grace.cli.explain import explain, list_
from grace.cli.migrate import migrate
from grace.cli.report import report
from grace.cli.simulate import simulate, simulate_decoupled
from grace.cli.survey import (
    survey_add,
    survey_frontier,
    survey_merge,
    survey_plan,
    survey_report,
    survey_run,
    survey_steps,
)
from grace.cli.syncer import syncer
from grace.cli.tasks import tasks
from grace.cli.verify import verify
from grace_command import shell
from grace_command.quick import greeting

app = typer.Typer(
    cls=CommandGroup, rich_markup_mode="rich", pretty_exceptions_enable=False,
    help="Gradient compression for distributed deep learning.",
)  # fmt: skip
bench = typer.Typer(cls=shell.Group, no_args_is_help=True, help="Benchmarks: sweeps over links, and what codecs cost.")
app.add_typer(bench, name="bench")
survey = typer.Typer(
    cls=shell.Group, no_args_is_help=True, help="The survey, done again: evidence that anyone can repeat and add to."
)
app.add_typer(survey, name="survey")
_COMMANDS: list[Callable[..., None]] = [
    list_, explain, tasks, runs.train, runs.compare_, simulate, simulate_decoupled, syncer, advise, report, verify, doctor,
]  # fmt: skip
_BENCH_COMMANDS: list[Callable[..., None]] = [
    runs.bench_train, suite.smoke, suite.link, suite.predict, codecs,
]  # fmt: skip
_SURVEY_COMMANDS: list[Callable[..., None]] = [
    survey_plan,
    survey_run,
    survey_add,
    survey_merge,
    survey_frontier,
    survey_report,
    survey_steps,
]
for group, commands in ((app, _COMMANDS), (bench, _BENCH_COMMANDS), (survey, _SURVEY_COMMANDS)):
    for command in commands:
        name = command.__name__.removeprefix("bench_").removeprefix("survey_").rstrip("_").replace("_", "-")
        group.command(name, cls=shell.Command)(command)
# What follows the script is the script's, options and all.
_REST = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
app.command("migrate", cls=shell.Command, context_settings=_REST)(migrate)


@app.callback(invoke_without_command=True)
def _main(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", metavar="", help="Show the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"grace {grace.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(greeting(grace.__version__))


def run() -> None:
    """The command line, as a program."""
    try:
        app()
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
        sys.exit(130)
