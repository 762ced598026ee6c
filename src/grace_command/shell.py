"""The help of ``grace`` and ``grace bench``, and the shell's completion, from commands that do nothing but look like the real
ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from grace_command import catalog

LINKS = ("none", "100mbit", "1gbit", "10gbit", "25gbit")
LISTS: dict[str, Callable[[], Iterable[str]]] = {
    "methods": catalog.method_names,
    "tasks": lambda: (row["name"] for row in catalog.read()["tasks"]),
    "links": lambda: LINKS,
}


class _PlainFlags:
    """Mixin: the help shows no type behind a flag."""

    def get_params(self, *context: Any) -> list[Any]:
        """Options and arguments."""
        above: Any = super()
        params: list[Any] = above.get_params(*context)
        for param in params:
            if getattr(param, "is_flag", False) and param.metavar is None:
                param.metavar = ""
        return params


class Command(_PlainFlags, TyperCommand):
    """A command."""


class Group(_PlainFlags, TyperGroup):
    """Several commands."""


def complete_last(begun: str, names: Iterable[str]) -> list[str]:
    """Completes, for the shell, the last name of a list with commas between.

    Example:
        >>> complete_last("none,1g", LINKS)
        ['none,1gbit']
    """
    done, comma, last = begun.rpartition(",")
    return [f"{done}{comma}{name}" for name in names if name.startswith(last)]


def program() -> typer.Typer:
    """The whole tree of commands."""
    tree = catalog.read()["command"]
    app = typer.Typer(cls=Group, rich_markup_mode="rich", pretty_exceptions_enable=False, help=tree["help"])
    app.callback(invoke_without_command=True)(_imitate("main", tree))
    _add(app, tree)
    return app


def _add(app: typer.Typer, tree: dict[str, Any]) -> None:
    for name, command in tree["commands"].items():
        if "commands" in command:
            group = typer.Typer(cls=Group, help=command["help"])
            _add(group, command)
            app.add_typer(group, name=name)
        else:
            app.command(name, cls=Command)(_imitate(name, command))


def _imitate(name: str, command: dict[str, Any]) -> Callable[..., None]:
    def do_nothing(**options: Any) -> None:
        pass

    params = [_param(f"option_{at}", param) for at, param in enumerate(command["params"])]
    do_nothing.__name__, do_nothing.__doc__ = name, command["help"]
    do_nothing.__signature__ = inspect.Signature(params)  # type: ignore[attr-defined]
    do_nothing.__annotations__ = {param.name: param.annotation for param in params}
    return do_nothing


def _param(name: str, told: dict[str, Any]) -> inspect.Parameter:
    more = {"help": told.get("help"), "metavar": told.get("metavar")}
    if "completes" in told:
        names = LISTS[told["completes"]]
        more["autocompletion"] = lambda incomplete: complete_last(incomplete, names())
    kind = bool if told.get("flag") else str
    info = typer.Option(*told["names"], **more) if told.get("option") else typer.Argument(**more)  # type: ignore[arg-type]
    default = False if told.get("flag") else None
    annotation = Annotated[kind if kind is bool else str | None, info]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
